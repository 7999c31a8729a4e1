"""The table of clauses and stores in docs/guarantees.md is the suite's. `table_test.py --write docs/guarantees.md`
writes it."""

import sys

from clauses import CLAUSES, PARTS
from departures import DEPARTURES

BEGIN = "<!-- The table below is written by tests/conformance/table_test.py. -->\n"
END = "<!-- The end of the table. -->\n"


def table():
    subjects = list(DEPARTURES)
    reasons = []

    def cell(subject, clause):
        if clause not in DEPARTURES[subject]:
            return "yes"
        reason = DEPARTURES[subject][clause][0]
        if reason not in reasons:
            reasons.append(reason)
        return f"no ({reasons.index(reason) + 1})"

    lines = [f"| clause | {' | '.join(subjects)} |", "|---" * (len(subjects) + 1) + "|"]
    part = None
    for clause, function in CLAUSES.items():
        if PARTS[clause] != part:
            part = PARTS[clause]
            lines.append(f"| **{part}** |" + " |" * len(subjects))
        cells = [cell(subject, clause) for subject in subjects]
        lines.append(f"| {function.__doc__.strip()} (`{clause}`) | {' | '.join(cells)} |")
    lines.append("")
    lines += [f"{number}. {reason}" for number, reason in enumerate(reasons, 1)]
    return "\n".join(lines) + "\n"


def main():
    path = sys.argv[-1]
    with open(path, encoding="utf-8") as page:
        text = page.read()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    wanted = text[:begin] + "\n" + table() + "\n" + text[end:]
    if sys.argv[1] == "--write":
        with open(path, "w", encoding="utf-8") as page:
            page.write(wanted)
    elif text != wanted:
        print(f"{path}: the table is not the suite's; run tests/conformance/table_test.py --write {path}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
