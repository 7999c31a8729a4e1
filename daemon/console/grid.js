// A table of any length: only the rows near the window are in the document.
//
// Rows are of one height (the style's `--row`), placed absolutely in a body as high as all of them, and the
// page itself scrolls. Assistive technology gets the true count and each row's place (aria-rowcount,
// aria-rowindex). The one row that the keyboard is on stays in the document wherever the page is scrolled to,
// so that focus is never lost.
//
// Keys: ↑ ↓ or k j, PageUp PageDown, Home End move; Enter opens. Buttons within a row come after it in the
// tab order; those of other rows are left out of it.

import { h, morph } from "./dom.js";

// Rows beyond the window on either side, so that scrolling shows no gap.
const MARGIN = 8;

export class Grid {
  #rows = [];
  #head;
  #body;
  #active = 0;
  #rowHeight = 40;
  #selected = null;
  #elements = new Map();
  #frame = 0;
  // Grows when rows may look different; a row that was drawn since is only moved.
  #version = 0;

  // columns: [{id, title, sort, class, cell: (row) => nodes}]; `sort` names the field it sorts by. keyOf(row)
  // distinguishes rows; open(row) is called for a click or Enter.
  constructor({ label, columns, keyOf, open, onSort, className }) {
    Object.assign(this, { columns, keyOf, open, onSort });
    this.#head = h("div", { role: "rowgroup", class: "grid-head" });
    this.#body = h("div", { role: "rowgroup", class: "grid-body" });
    this.element = h(
      "div",
      { role: "grid", class: `grid ${className}`, "aria-label": label, "data-own": "" },
      this.#head,
      this.#body,
    );
    this.#body.addEventListener("click", (event) => this.#onClick(event));
    this.#body.addEventListener("keydown", (event) => this.#onKey(event));
    this.#body.addEventListener("focusin", (event) => this.#onFocus(event));
    this.#head.addEventListener("click", (event) => {
      const button = event.target.closest("button");
      if (button) this.onSort(button.dataset.sort);
    });
    // Both follow the page as long as it shows this grid.
    this.scheduler = () => this.#schedule();
    addEventListener("scroll", this.scheduler, { passive: true });
    addEventListener("resize", this.scheduler, { passive: true });
  }

  destroy() {
    removeEventListener("scroll", this.scheduler);
    removeEventListener("resize", this.scheduler);
    cancelAnimationFrame(this.#frame);
  }

  // `sort` as in the route: a field, or `-` and a field. `selected` is the key of the row that is open.
  show(rows, { sort = "", selected = null } = {}) {
    const activeKey = this.#rows[this.#active] && this.keyOf(this.#rows[this.#active]);
    if (rows !== this.#rows && activeKey !== undefined) {
      const moved = rows.findIndex((row) => this.keyOf(row) === activeKey);
      this.#active = moved >= 0 ? moved : Math.min(this.#active, Math.max(0, rows.length - 1));
    }
    this.#rows = rows;
    this.#selected = selected;
    this.element.setAttribute("aria-rowcount", rows.length + 1);
    this.#version++;
    this.#showHead(sort);
    this.#draw();
  }

  // Puts the keyboard on the row that it was on last, or the one with this key.
  focus(key) {
    if (key !== undefined) {
      const index = this.#rows.findIndex((row) => this.keyOf(row) === key);
      if (index >= 0) this.#active = index;
    }
    if (this.#rows.length > 0) this.#moveTo(this.#active);
  }

  #showHead(sort) {
    const [field, descending] = sort.startsWith("-") ? [sort.slice(1), true] : [sort, false];
    morph(
      this.#head,
      h(
        "div",
        { role: "row", "aria-rowindex": 1, class: "grid-row" },
        this.columns.map((column) => {
          const direction =
            column.sort && column.sort === field ? (descending ? "descending" : "ascending") : null;
          return h(
            "div",
            { role: "columnheader", class: column.class, "aria-sort": direction },
            column.sort
              ? h(
                  "button",
                  { type: "button", "data-sort": column.sort },
                  column.title,
                  h(
                    "span",
                    { class: "sort-mark", "aria-hidden": "true" },
                    direction === "ascending" ? "▲" : direction === "descending" ? "▼" : "",
                  ),
                )
              : column.title || h("span", { class: "visually-hidden" }, "Actions"),
          );
        }),
      ),
    );
  }

  #schedule() {
    if (this.#frame) return;
    this.#frame = requestAnimationFrame(() => {
      this.#frame = 0;
      this.#draw();
    });
  }

  // Which rows the window shows now.
  #window() {
    this.#rowHeight =
      parseFloat(getComputedStyle(this.element).getPropertyValue("--row")) *
        parseFloat(getComputedStyle(document.documentElement).fontSize) || 40;
    const top = this.#body.getBoundingClientRect().top;
    const first = Math.floor(-top / this.#rowHeight) - MARGIN;
    const last = Math.ceil((innerHeight - top) / this.#rowHeight) + MARGIN;
    return [Math.max(0, first), Math.min(this.#rows.length, last)];
  }

  #draw() {
    if (!this.element.isConnected) return;
    const [first, last] = this.#window();
    this.#body.style.height = `${this.#rows.length * this.#rowHeight}px`;
    const kept = new Map();
    for (let index = first; index < last; index++) this.#drawRow(index, kept);
    if (this.#active < this.#rows.length && (this.#active < first || this.#active >= last)) {
      this.#drawRow(this.#active, kept);
    }
    for (const [key, element] of this.#elements) if (!kept.has(key)) element.remove();
    this.#elements = kept;
    this.#order();
  }

  // In the order of the rows, as the tab key and screen readers go by the document's. Rows that stay are
  // not touched: a focused element that is moved loses its focus.
  #order() {
    const ordered = [...this.#elements.values()].sort((a, b) => a.ariaRowIndex - b.ariaRowIndex);
    const focused = this.#body.contains(document.activeElement)
      ? ordered.findIndex((element) => element.contains(document.activeElement))
      : -1;
    for (let i = focused - 1; i >= 0; i--) {
      if (ordered[i].nextSibling !== ordered[i + 1]) ordered[i + 1].before(ordered[i]);
    }
    for (let i = focused + 1; i < ordered.length; i++) {
      const before = i === 0 ? null : ordered[i - 1];
      if (ordered[i].parentNode === this.#body && ordered[i].previousSibling === before) continue;
      if (before) before.after(ordered[i]);
      else this.#body.prepend(ordered[i]);
    }
  }

  #drawRow(index, kept) {
    const row = this.#rows[index];
    const key = this.keyOf(row);
    const active = index === this.#active;
    let element = this.#elements.get(key);
    if (!element) element = h("div", { role: "row", class: "grid-row" });
    kept.set(key, element);
    const drawn = `${this.#version} ${index} ${active} ${this.#rowHeight}`;
    if (element.drawn === drawn) return;
    element.drawn = drawn;
    element.row = row;
    element.setAttribute("aria-rowindex", index + 2);
    element.setAttribute("aria-selected", key === this.#selected);
    element.tabIndex = active ? 0 : -1;
    element.style.transform = `translateY(${index * this.#rowHeight}px)`;
    morph(
      element,
      this.columns.map((column) =>
        h(
          "div",
          { role: "gridcell", class: column.class, "data-title": column.title },
          column.cell(row),
        ),
      ),
    );
    for (const inner of element.querySelectorAll("a, button")) inner.tabIndex = active ? 0 : -1;
  }

  #moveTo(index) {
    if (this.#rows.length === 0) return;
    this.#active = Math.max(0, Math.min(this.#rows.length - 1, index));
    const top = this.#body.getBoundingClientRect().top + this.#active * this.#rowHeight;
    const headBottom = this.#head.getBoundingClientRect().bottom;
    if (top < headBottom) scrollBy({ top: top - headBottom, behavior: "instant" });
    else if (top + this.#rowHeight > innerHeight)
      scrollBy({ top: top + this.#rowHeight - innerHeight, behavior: "instant" });
    this.#draw();
    this.#elements.get(this.keyOf(this.#rows[this.#active]))?.focus({ preventScroll: true });
  }

  #onFocus(event) {
    const element = event.target.closest("[role=row]");
    const index = Number(element.ariaRowIndex) - 2;
    if (index === this.#active) return;
    this.#active = index;
    this.#draw();
  }

  #onClick(event) {
    // Links, buttons and marked text keep their own meaning.
    if (event.target.closest("a, button") || String(getSelection())) return;
    const element = event.target.closest("[role=row]");
    if (element) this.open(element.row);
  }

  #onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(innerHeight / this.#rowHeight) - 2);
    const target = {
      ArrowDown: this.#active + 1,
      j: this.#active + 1,
      ArrowUp: this.#active - 1,
      k: this.#active - 1,
      PageDown: this.#active + page,
      PageUp: this.#active - page,
      Home: 0,
      End: this.#rows.length - 1,
    }[event.key];
    if (target !== undefined) {
      event.preventDefault();
      event.stopPropagation();
      this.#moveTo(target);
    } else if (event.key === "Enter" && !event.target.closest("a, button")) {
      event.preventDefault();
      this.open(event.target.closest("[role=row]").row);
    }
  }
}
