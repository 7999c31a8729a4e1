#!/usr/bin/env python3
"""Draws what `./dev bench registry --workload growth --json FILE` has measured.

    tests/bench/registry/plot_growth.py FILE docs/growth.svg

The x axis is logarithmic, so a cost that does not depend on how much is there is a flat line, and
one that grows with the logarithm a straight one.
"""

import json
import math
import sys

WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 70, 170, 50, 50
COLORS = ["#0072b2", "#e69f00", "#cc79a7", "#009e73"]  # told apart without red and green, too
METRIC = "server_cpu_us_per_instance_at_"


def read(path):
    """Microseconds by instances present, by subject."""
    series = {}
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            if row["workload"] == "growth" and row["metric"].startswith(METRIC):
                present = int(row["metric"][len(METRIC):])
                series.setdefault(row["subject"], {})[present] = row["value"]
    return series


def main():
    source, target = sys.argv[1:]
    series = read(source)
    if not series:
        sys.exit(f"{source}: no line of the workload growth")
    sizes = sorted({size for points in series.values() for size in points})
    low, high = math.log10(sizes[0]), math.log10(sizes[-1])
    most = 2 * math.ceil(max(max(points.values()) for points in series.values()) / 2)

    def x(size):
        return LEFT + (WIDTH - LEFT - RIGHT) * (math.log10(size) - low) / ((high - low) or 1)

    def y(value):
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * value / most

    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="#fff"/>',
        f'<text x="{LEFT}" y="24" font-size="15">Server CPU of one registration, batched, '
        'in microseconds</text>',
    ]
    for i in range(5):
        value = most * i / 4
        out.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" '
                   f'y2="{y(value):.1f}" stroke="#ddd"/><text x="{LEFT - 8}" '
                   f'y="{y(value) + 4:.1f}" text-anchor="end">{value:g}</text>')
    for size in sizes:
        out.append(f'<text x="{x(size):.1f}" y="{HEIGHT - BOTTOM + 18}" '
                   f'text-anchor="middle">{size:,}</text>')
    out.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 10}" '
               'text-anchor="middle">instances that are there already</text>')
    for number, (name, points) in enumerate(sorted(series.items())):
        color = COLORS[number % len(COLORS)]
        line = " ".join(f"{x(size):.1f},{y(points[size]):.1f}" for size in sorted(points))
        out.append(f'<polyline points="{line}" fill="none" stroke="{color}" stroke-width="2"/>')
        out.append(f'<text x="{WIDTH - RIGHT + 10}" y="{y(points[max(points)]) + 4:.1f}" '
                   f'fill="{color}">{name}</text>')
    with open(target, "w", encoding="utf-8") as svg:
        svg.write("\n".join(out + ["</svg>"]) + "\n")


if __name__ == "__main__":
    main()
