"""Draws the plots of docs/benchmarks.md as SVG, from JSON files that keep figures of `moeflux bench --json`.

    tools/bench/plot.py                                draws every docs/benchmarks/*.json to the .svg of the same name
    tools/bench/plot.py --check                        fails where a drawing is not that of its data
    moeflux bench ... --json | tools/bench/plot.py --add FILE.json SERIES X
                                                       adds the run to a series, at X

A data file has the keys `title`, `machine`, `commands`, `x` and `y` (`key` and `label` each; `x` may be
`"scale": "log"`), and `series`: a list of `name` and `points`. The keys of a point are those of `bench --json`: the
value of `y.key`, and where they are known its `_min` and `_max`.
"""

import json
import math
import pathlib
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs" / "benchmarks"
WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 64, 176, 48, 56
# Colours that readers with colour blindness can tell apart (Okabe and Ito).
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00"]
INK, GRID = "#444", "#ddd"


def nice_step(span, n):
    """The step of 1, 2 or 5 times a power of ten that cuts `span` into about `n` parts."""
    raw = span / n
    power = 10 ** math.floor(math.log10(raw))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw)


def number(value):
    return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def escape(text):
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


class Axes:
    """Where values are in the picture."""

    def __init__(self, data):
        x_key, y_key = data["x"]["key"], data["y"]["key"]
        points = [point for series in data["series"] for point in series["points"]]
        self.is_log = data["x"].get("scale") == "log"
        self.xs = sorted({point[x_key] for point in points})
        self.x_low, self.x_high = self.place(self.xs[0]), self.place(self.xs[-1])
        top = max(point.get(f"{y_key}_max", point[y_key]) for point in points)
        self.y_step = nice_step(top, 5)
        self.y_high = math.ceil(top / self.y_step) * self.y_step

    def place(self, x):
        return math.log2(x) if self.is_log else x

    def x(self, value):
        share = (self.place(value) - self.x_low) / ((self.x_high - self.x_low) or 1)
        return LEFT + 16 + share * (WIDTH - LEFT - RIGHT - 32)

    def y(self, value):
        return HEIGHT - BOTTOM - value / self.y_high * (HEIGHT - TOP - BOTTOM)


def text(x, y, content, size=12, anchor="start", fill=INK, more=""):
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}"{more}>{escape(content)}</text>'


def line(x1, y1, x2, y2, stroke, width=1):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{stroke}" stroke-width="{width}"/>'


def frame(data, axes):
    """Titles, grid and labels."""
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = [text(LEFT, 20, data["title"], 15, more=' font-weight="bold"'), text(LEFT, 38, data["machine"], 11)]
    for i in range(round(axes.y_high / axes.y_step) + 1):
        value = i * axes.y_step
        parts.append(line(LEFT, axes.y(value), right, axes.y(value), GRID))
        parts.append(text(LEFT - 8, axes.y(value) + 4, number(value), anchor="end"))
    for value in axes.xs:
        parts.append(line(axes.x(value), bottom, axes.x(value), bottom + 5, INK))
        parts.append(text(axes.x(value), bottom + 19, number(value), anchor="middle"))
    parts.append(line(LEFT, bottom, right, bottom, INK))
    parts.append(text((LEFT + right) / 2, HEIGHT - 14, data["x"]["label"], anchor="middle"))
    middle = (TOP + bottom) / 2
    turned = f' transform="rotate(-90 16 {middle:.1f})"'
    parts.append(text(16, middle, data["y"]["label"], anchor="middle", more=turned))
    return parts


def curve(series, colour, data, axes):
    """A series: its line, its points, and bars from least to most."""
    x_key, y_key = data["x"]["key"], data["y"]["key"]
    points = sorted(series["points"], key=lambda point: point[x_key])
    path = " ".join(f"{axes.x(point[x_key]):.1f},{axes.y(point[y_key]):.1f}" for point in points)
    dashes = ' stroke-dasharray="6 4"' if series.get("dashed") else ""
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>']
    for point in points:
        x, least, most = axes.x(point[x_key]), point.get(f"{y_key}_min"), point.get(f"{y_key}_max")
        if least is not None and most is not None:
            parts.append(line(x, axes.y(least), x, axes.y(most), colour, 1.5))
        parts.append(f'<circle cx="{x:.1f}" cy="{axes.y(point[y_key]):.1f}" r="3.5" fill="{colour}"/>')
    return parts


def legend(data, axes):
    """Names of the series at their last points, moved apart where they would touch."""
    y_key = data["y"]["key"]
    ends = []
    for series, colour in zip(data["series"], COLOURS):
        last = max(series["points"], key=lambda point: point[data["x"]["key"]])
        ends.append([axes.y(last[y_key]), series["name"], colour])
    ends.sort()
    for above, below in zip(ends, ends[1:]):
        below[0] = max(below[0], above[0] + 16)
    excess = max(0, ends[-1][0] - (HEIGHT - BOTTOM))
    return [text(WIDTH - RIGHT + 8, y + 4 - excess, name, fill=colour) for y, name, colour in ends]


def draw(data):
    axes = Axes(data)
    parts = frame(data, axes)
    for series, colour in zip(data["series"], COLOURS):
        parts += curve(series, colour, data, axes)
    parts += legend(data, axes)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" role="img">'
    title = f"<title>{escape(data['title'])}</title>"
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
    return "\n".join([head, title, back, *parts, "</svg>"]) + "\n"


def add(path, name, x, bench):
    data = json.loads(path.read_text())
    series = next(series for series in data["series"] if series["name"] == name)
    key = data["y"]["key"]
    point = {data["x"]["key"]: x, **{k: bench[k] for k in (key, f"{key}_min", f"{key}_max") if bench.get(k) is not None}}
    series["points"] = [old for old in series["points"] if old[data["x"]["key"]] != x] + [point]
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")


def main(arguments):
    if arguments[:1] == ["--add"]:
        path, name, x = arguments[1:]
        add(pathlib.Path(path), name, float(x), json.load(sys.stdin))
        return 0
    stale = []
    for path in sorted(FOLDER.glob("*.json")):
        svg, drawn = path.with_suffix(".svg"), draw(json.loads(path.read_text()))
        if arguments == ["--check"]:
            if not svg.exists() or svg.read_text() != drawn:
                stale.append(svg.name)
        else:
            svg.write_text(drawn)
    if stale:
        print(f"not drawn from their data: {', '.join(stale)}; run tools/bench/plot.py", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
