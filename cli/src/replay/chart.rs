//! The report as a chart in SVG: for each policy, admitted and rejected requests over time.

use std::fmt::Write;

use super::report::{Instant, Report, Role, grouped};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 28.0;
/// The height of what stands above the first panel.
const HEAD: f64 = 56.0;
/// The heights of a panel's title, of its plot, and of the labels below.
const TITLE: f64 = 26.0;
const PLOT: f64 = 110.0;
const LABELS: f64 = 34.0;

/// The most policies that are drawn: those with the most rejections.
const MAX_POLICIES: usize = 12;

/// The colours of both series differ in lightness, too. Dark where the reader's system is.
const STYLE: &str = "\
.page { fill: #ffffff }
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.name { font-weight: 600; font-size: 13px }
.dim { fill: #59636e }
.grid { stroke: #d1d9e0; stroke-width: 1 }
.admitted { fill: #9ec5e8 }
.rejected { fill: #c2410c }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 }
text { fill: #f0f6fc }
.dim { fill: #9198a1 }
.grid { stroke: #3d444d }
.admitted { fill: #2f5f8f }
.rejected { fill: #ff8a4c }
}
";

/// A part of the chart with axes of its own.
struct Panel {
    name: String,
    about: String,
    /// Admitted and rejected requests in each bucket.
    counts: Vec<(u64, u64)>,
}

/// Draws the chart.
pub(super) fn draw(report: &Report, title: &str) -> String {
    let panels = panels(report);
    let height = HEAD + panels.len() as f64 * (TITLE + PLOT + LABELS) + 8.0;
    let mut svg = String::new();
    let title = escaped(title);
    // Writing to a string can't fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n\
         <rect class=\"page\" width=\"{WIDTH}\" height=\"{height}\"/>\n"
    );
    text(&mut svg, (12.0, 22.0), "name", "start", &title);
    let legend = format!(
        "requests in {}, by time of arrival (UTC)",
        duration(report.bucket_seconds)
    );
    text(&mut svg, (12.0, 42.0), "dim", "start", &legend);
    for (x, class) in [(WIDTH - 190.0, "admitted"), (WIDTH - 96.0, "rejected")] {
        rect(&mut svg, class, (x, 12.0), (12.0, 12.0));
        text(&mut svg, (x + 18.0, 22.0), "", "start", class);
    }
    for (index, panel) in panels.iter().enumerate() {
        let top = HEAD + index as f64 * (TITLE + PLOT + LABELS);
        panel.draw(&mut svg, top, report);
    }
    svg.push_str("</svg>\n");
    svg
}

fn panels(report: &Report) -> Vec<Panel> {
    let share = |rejected: u64, of: u64| {
        let percent = rejected as f64 / of.max(1) as f64 * 100.0;
        format!(
            "{} of {} rejected ({percent:.1} %)",
            grouped(rejected),
            grouped(of)
        )
    };
    let mut panels = Vec::new();
    if report.policies.len() > 1 {
        let buckets = report.buckets.iter();
        panels.push(Panel {
            name: "all requests".to_owned(),
            about: share(report.rejected, report.requests),
            counts: buckets
                .map(|bucket| (bucket.admitted, bucket.rejected))
                .collect(),
        });
    }
    let mut most_rejected: Vec<_> = (0..report.policies.len()).collect();
    most_rejected.sort_by_key(|index| std::cmp::Reverse(report.policies[*index].rejected));
    most_rejected.truncate(MAX_POLICIES);
    for (index, policy) in report.policies.iter().enumerate() {
        if !most_rejected.contains(&index) {
            continue;
        }
        let role = match policy.role {
            Role::Live => "",
            Role::Ban => ", a ban",
            Role::Shadow => ", not enforced",
        };
        let buckets = report.buckets.iter();
        let buckets = buckets.map(|bucket| bucket.policies[index]);
        panels.push(Panel {
            name: policy.policy.clone(),
            about: format!(
                "{}{role}: {}",
                policy.quota,
                share(policy.rejected, policy.applied)
            ),
            counts: buckets
                .map(|bucket| (bucket.admitted, bucket.rejected))
                .collect(),
        });
    }
    panels
}

impl Panel {
    fn draw(&self, svg: &mut String, top: f64, report: &Report) {
        let name = escaped(&self.name);
        let _ = writeln!(
            svg,
            "<text x=\"12\" y=\"{:.0}\"><tspan class=\"name\">{name}</tspan>\
             <tspan class=\"dim\" dx=\"10\">{}</tspan></text>",
            top + 16.0,
            escaped(&self.about)
        );
        let bottom = top + TITLE + PLOT;
        let highest = self
            .counts
            .iter()
            .map(|(admitted, rejected)| admitted + rejected)
            .max();
        let scale = round_up(highest.unwrap_or(0).max(1));
        let y = |count: u64| bottom - count as f64 / scale as f64 * PLOT;
        for part in [0, scale / 2, scale] {
            line(svg, (LEFT, y(part)), (WIDTH - RIGHT, y(part)));
            text(
                svg,
                (LEFT - 6.0, y(part) + 4.0),
                "dim",
                "end",
                &grouped(part),
            );
        }
        let step = (WIDTH - LEFT - RIGHT) / self.counts.len().max(1) as f64;
        let bars = |lower: &dyn Fn(usize) -> u64, upper: &dyn Fn(usize) -> u64| {
            let mut path = String::new();
            for index in 0..self.counts.len() {
                let (from, to) = (y(lower(index)), y(upper(index)));
                if to < from {
                    let x = LEFT + index as f64 * step;
                    let width = if step > 4.0 { step - 1.0 } else { step };
                    let _ = write!(path, "M{x:.1} {from:.1}V{to:.1}h{width:.2}V{from:.1}z");
                }
            }
            path
        };
        let rejected = |index: usize| self.counts[index].1;
        let all = |index: usize| self.counts[index].0 + self.counts[index].1;
        for (class, path) in [
            ("admitted", bars(&rejected, &all)),
            ("rejected", bars(&|_| 0, &rejected)),
        ] {
            let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
        }
        self.times(svg, bottom, report);
    }

    /// Labels the horizontal axis.
    fn times(&self, svg: &mut String, bottom: f64, report: &Report) {
        let Some(first) = report.buckets.first() else {
            return;
        };
        let start_s = first.at.0 / 1_000_000;
        let length_s = report.bucket_seconds * report.buckets.len() as i64;
        let step_s = tick_seconds(length_s);
        let format = match step_s {
            ..60 => "%H:%M:%S",
            60..86_400 => "%H:%M",
            _ => "%b %-d",
        };
        let mut tick_s = (start_s + step_s - 1).div_euclid(step_s) * step_s;
        let mut last_day = String::new();
        while tick_s <= start_s + length_s {
            let part = (tick_s - start_s) as f64 / length_s as f64;
            let x = LEFT + part * (WIDTH - LEFT - RIGHT);
            let at = Instant(tick_s * 1_000_000);
            line(svg, (x, bottom), (x, bottom + 4.0));
            text(svg, (x, bottom + 16.0), "dim", "middle", &at.format(format));
            let day = at.format(if step_s < 86_400 { "%b %-d" } else { "%Y" });
            if day != last_day {
                text(svg, (x, bottom + 29.0), "dim", "middle", &day);
                last_day = day;
            }
            tick_s += step_s;
        }
    }
}

/// The seconds between labels, so that there are at most eight.
fn tick_seconds(length_s: i64) -> i64 {
    const STEPS: [i64; 20] = [
        1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
        86_400, 172_800, 604_800,
    ];
    let step = STEPS.into_iter().find(|step| length_s / step <= 8);
    step.unwrap_or_else(|| (length_s / 8 / 604_800 + 1) * 604_800)
}

/// The next number of one or two digits and zeros.
fn round_up(number: u64) -> u64 {
    let mut power = 1_u64;
    loop {
        for digits in [2, 3, 4, 5, 6, 8, 10, 15] {
            let round = power.saturating_mul(digits);
            if round >= number {
                return round;
            }
        }
        power = power.saturating_mul(10);
    }
}

fn duration(seconds: i64) -> String {
    for (unit_s, unit) in [
        (604_800, "week"),
        (86_400, "day"),
        (3_600, "hour"),
        (60, "minute"),
        (1, "second"),
    ] {
        if seconds % unit_s == 0 {
            return match seconds / unit_s {
                1 => format!("a {unit}").replace("a hour", "an hour"),
                count => format!("{count} {unit}s"),
            };
        }
    }
    String::new()
}

fn line(svg: &mut String, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<line class=\"grid\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
    );
}

fn rect(svg: &mut String, class: &str, (x, y): (f64, f64), (width, height): (f64, f64)) {
    let _ = writeln!(
        svg,
        "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"/>"
    );
}

fn text(svg: &mut String, (x, y): (f64, f64), class: &str, anchor: &str, text: &str) {
    let _ = writeln!(
        svg,
        "<text class=\"{class}\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{text}</text>"
    );
}

/// The text without characters that mean something in XML, or that XML does not allow.
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for char in text.chars() {
        match char {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            char if char.is_control() => escaped.push(' '),
            char => escaped.push(char),
        }
    }
    escaped
}
