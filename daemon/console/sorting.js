// Rows in the order that a route's `sort` names: a field, or `-` and a field. Pure.

const collator = new Intl.Collator("en", { numeric: true, sensitivity: "base" });

// `fields` maps a name to what is compared: numbers, or text as people sort it (orders-2 before orders-10).
// Rows that compare equal stay in their order; an unknown or empty `sort` changes nothing.
export function sortRows(rows, sort, fields) {
  const descending = sort?.startsWith("-");
  const field = fields[descending ? sort.slice(1) : sort];
  if (!field) return rows;
  const keyed = rows.map((row) => [field(row), row]);
  const compare = ([a], [b]) => (typeof a === "number" ? a - b : collator.compare(a, b));
  keyed.sort(descending ? (a, b) => compare(b, a) : compare);
  return keyed.map(([, row]) => row);
}

// What a click on a column's head leads to: up, down, and as it came.
export function nextSort(current, field) {
  if (current === field) return `-${field}`;
  return current === `-${field}` ? "" : field;
}
