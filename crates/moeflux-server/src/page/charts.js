// Two curves over the last two minutes.

const POINTS = 120;

export class Chart {
  constructor(svg, top) {
    this.svg = svg;
    this.top = top;
    this.values = [];
    svg.setAttribute("viewBox", `0 0 ${POINTS - 1} 100`);
    svg.setAttribute("preserveAspectRatio", "none");
    this.area = this.path("area");
    this.curve = this.path("curve");
  }

  path(name) {
    const it = document.createElementNS("http://www.w3.org/2000/svg", "path");
    it.setAttribute("class", name);
    this.svg.append(it);
    return it;
  }

  /** Adds a value, or `null` where there is none. */
  add(value) {
    this.values.push(value);
    if (this.values.length > POINTS) this.values.shift();
    const top = this.top ?? Math.max(1, ...this.values) * 1.15;
    const from = POINTS - this.values.length;
    let curve = "";
    let area = "";
    let start = null;
    this.values.forEach((value, i) => {
      if (value === null) {
        if (start !== null) area += `L${from + i - 1} 100Z`;
        start = null;
        return;
      }
      const point = `${from + i} ${(96 - (value / top) * 90).toFixed(1)}`;
      curve += start === null ? `M${point}h0` : "L" + point;
      area += start === null ? `M${from + i} 100L${point}` : "L" + point;
      start ??= i;
    });
    if (start !== null) area += `L${POINTS - 1} 100Z`;
    this.curve.setAttribute("d", curve);
    this.area.setAttribute("d", area);
  }
}
