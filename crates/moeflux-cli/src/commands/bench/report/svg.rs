//! Drawings as SVG elements, coloured by classes of the page's style.

use std::fmt::Write as _;

/// A drawing of fixed proportions that fills the width it gets.
pub(super) struct Svg {
    body: String,
    width: f64,
    height: f64,
    label: String,
}

/// Where a text stands relative to its point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A rectangle.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Area {
    pub(super) x: f64,
    pub(super) y: f64,
    pub(super) width: f64,
    pub(super) height: f64,
}

/// A place in a drawing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Point {
    x: f64,
    y: f64,
}

pub(super) fn point(x: f64, y: f64) -> Point {
    Point { x, y }
}

impl Svg {
    /// `label` describes the drawing to screen readers.
    pub(super) fn new(width: f64, height: f64, label: &str) -> Svg {
        Svg { body: String::new(), width, height, label: escaped(label) }
    }

    /// `hint` appears under the mouse pointer.
    pub(super) fn rect(&mut self, area: Area, class: &str, hint: &str) {
        let Area { x, y, width, height } = area;
        let (width, height) = (width.max(0.0), height.max(0.0));
        self.write(&format!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" class=\"{class}\""
        ));
        self.close("rect", hint);
    }

    /// A rectangle with round corners. `hint` appears under the mouse pointer.
    pub(super) fn bar(&mut self, area: Area, class: &str, hint: &str) {
        let Area { x, y, width, height } = area;
        let (width, height) = (width.max(0.0), height.max(0.0));
        let radius = (width / 2.0).min(height / 2.0).min(3.0);
        self.write(&format!(
            "<rect x=\"{x:.2}\" y=\"{y:.2}\" width=\"{width:.2}\" height=\"{height:.2}\" rx=\"{radius:.2}\" class=\"{class}\""
        ));
        self.close("rect", hint);
    }

    pub(super) fn line(&mut self, from: Point, to: Point, class: &str) {
        self.write(&format!(
            "<line x1=\"{:.2}\" y1=\"{:.2}\" x2=\"{:.2}\" y2=\"{:.2}\" class=\"{class}\"/>",
            from.x, from.y, to.x, to.y
        ));
    }

    pub(super) fn dot(&mut self, at: Point, radius: f64, class: &str, hint: &str) {
        self.write(&format!(
            "<circle cx=\"{:.2}\" cy=\"{:.2}\" r=\"{radius:.2}\" class=\"{class}\"",
            at.x, at.y
        ));
        self.close("circle", hint);
    }

    pub(super) fn text(&mut self, at: Point, anchor: Anchor, class: &str, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escaped(text);
        self.write(&format!(
            "<text x=\"{:.2}\" y=\"{:.2}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>",
            at.x, at.y
        ));
    }

    /// The element.
    pub(super) fn finish(self) -> String {
        let Svg { body, width, height, label } = self;
        format!(
            "<svg viewBox=\"0 0 {width:.0} {height:.0}\" role=\"img\" aria-label=\"{label}\">\n{body}</svg>\n"
        )
    }

    fn close(&mut self, element: &str, hint: &str) {
        let end = match hint {
            "" => String::from("/>\n"),
            hint => format!("><title>{}</title></{element}>\n", escaped(hint)),
        };
        self.write(&end);
    }

    fn write(&mut self, text: &str) {
        self.body.write_str(text).expect("a string takes any text");
    }
}

/// Text without characters that mean something in HTML.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// About `n` round values from 0 to at least `end`.
pub(super) fn ticks(end: f64, n: usize) -> Vec<f64> {
    if !(end > 0.0 && end.is_finite()) {
        return vec![0.0, 1.0];
    }
    let rough = end / n.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
    let step = step.into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
    let n_steps = (end / step).ceil() as usize;
    (0..=n_steps).map(|i| i as f64 * step).collect()
}

/// A number without digits that say nothing.
pub(super) fn short(value: f64) -> String {
    let digits = if value == 0.0 || value.abs() >= 100.0 {
        0
    } else {
        (2 - value.abs().log10().floor() as i32).clamp(0, 6)
    };
    let text = format!("{value:.*}", usize::try_from(digits).unwrap_or(0));
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_end_behind_what_they_show() {
        for end in [1e-7, 0.013, 0.9, 1.0, 7.2, 99.0, 12_345.0] {
            let ticks = ticks(end, 5);
            let last = *ticks.last().unwrap();
            assert!(last >= end && last < 2.6 * end, "{end}: {ticks:?}");
            assert!((3..=8).contains(&ticks.len()), "{end}: {ticks:?}");
        }
        assert_eq!(ticks(0.0, 5), [0.0, 1.0]);
        assert_eq!(ticks(f64::NAN, 5), [0.0, 1.0]);
    }

    #[test]
    fn numbers_are_short() {
        let cases = [(0.0, "0"), (1.0, "1"), (0.25, "0.25"), (1234.5, "1234"), (2.71928, "2.72")];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }

    #[test]
    fn names_cannot_leave_their_place() {
        assert_eq!(escaped("<a href=\"x\">&\n"), "&lt;a href=&quot;x&quot;&gt;&amp; ");
    }
}
