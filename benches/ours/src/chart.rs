//! A chart of decisions per second: a bar for each contender, each comparison on a scale of its own.

use std::fmt::Write;

use crate::outcome::{Outcome, grouped};

const WIDTH: usize = 780;
/// Where bars begin, right of the contenders' names.
const LEFT: usize = 190;
/// The longest bar; the number stands behind it.
const LONGEST: f64 = 480.0;
const BAR: usize = 16;
const STEP: usize = 22;
const GROUP: usize = 30;

/// Light or dark, as the reader has it.
const STYLE: &str = "\
    text { font: 13px system-ui, sans-serif; fill: #24292f }\n\
    .title { font-weight: 600 }\n\
    .small { font-size: 11px; fill: #57606a }\n\
    .ours { fill: #0969da }\n\
    .theirs { fill: #8c959f }\n\
    @media (prefers-color-scheme: dark) {\n\
    text { fill: #e6edf3 }\n\
    .small { fill: #9198a1 }\n\
    .ours { fill: #4493f8 }\n\
    .theirs { fill: #656c76 }\n\
    }\n";

/// The chart as SVG. The first contender of each comparison is ours, and so are those with our name.
pub fn draw(caption: &str, outcomes: &[Outcome]) -> String {
    let mut body = String::new();
    let mut y = 24;
    text(&mut body, 8, y, "title", "Decisions per second");
    for outcome in outcomes
        .iter()
        .filter(|outcome| !outcome.figures.is_empty())
    {
        y += GROUP;
        text(&mut body, 8, y, "title", &outcome.title);
        let rates = outcome.figures.iter().map(|figure| figure.rate);
        let most = rates.fold(0.0, f64::max);
        y += 8;
        for (place, figure) in outcome.figures.iter().enumerate() {
            let length = (figure.rate / most * LONGEST).max(1.0);
            let ours = place == 0 || figure.name.starts_with("tollgate");
            let class = if ours { "ours" } else { "theirs" };
            text(&mut body, 16, y + 13, "", figure.name);
            // Writing to a string can't fail.
            let _ = writeln!(
                body,
                r#"<rect class="{class}" x="{LEFT}" y="{y}" width="{length:.1}" height="{BAR}" rx="2"/>"#
            );
            let behind = LEFT + length as usize + 6;
            text(&mut body, behind, y + 13, "", &grouped(figure.rate));
            y += STEP;
        }
    }
    y += GROUP;
    text(&mut body, 8, y, "small", caption);
    let height = y + 16;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\" role=\"img\">\n<title>Decisions per second</title>\n\
         <style>\n{STYLE}</style>\n{body}</svg>\n"
    )
}

fn text(body: &mut String, x: usize, y: usize, class: &str, text: &str) {
    let text = text
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;");
    let class = match class {
        "" => String::new(),
        class => format!(r#" class="{class}""#),
    };
    let _ = writeln!(body, r#"<text{class} x="{x}" y="{y}">{text}</text>"#);
}
