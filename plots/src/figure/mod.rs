//! Figures: panels below each other, in the colours of a theme, as SVG.

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use self::ticks::Axis;
use crate::Result;

pub(crate) mod ticks;

/// As wide as a phone's screen can show legibly, at the sizes of text below.
pub(crate) const WIDTH: i32 = 600;

/// The room for the labels of vertical axes.
pub(crate) const LEFT: i32 = 44;

/// Behind the end of horizontal axes: half of their last label.
pub(crate) const RIGHT: i32 = 34;

/// The height of what stands above the first panel: the legend.
const TOP: i32 = 34;

/// The height of a panel's heading, and of the labels below the last one.
const HEADING: i32 = 30;
const LABELS: i32 = 26;

const TEXT_PX: f64 = 15.5;

/// The colours of a page. Those of admitted and rejected requests are near Okabe and Ito's: they differ to colour-blind readers.
/// Place and shape say the same.
pub(crate) struct Theme {
    pub(crate) name: &'static str,
    pub(crate) page: RGBColor,
    pub(crate) text: RGBColor,
    pub(crate) dim: RGBColor,
    pub(crate) grid: RGBColor,
    /// A period that is marked.
    pub(crate) band: RGBColor,
    pub(crate) admitted: RGBColor,
    pub(crate) rejected: RGBColor,
}

/// Pages are those of GitHub.
pub(crate) const THEMES: [Theme; 2] = [
    Theme {
        name: "light",
        page: RGBColor(255, 255, 255),
        text: RGBColor(31, 35, 40),
        dim: RGBColor(89, 99, 110),
        grid: RGBColor(209, 217, 224),
        band: RGBColor(234, 238, 242),
        admitted: RGBColor(86, 180, 233),
        rejected: RGBColor(213, 94, 0),
    },
    Theme {
        name: "dark",
        page: RGBColor(13, 17, 23),
        text: RGBColor(240, 246, 252),
        dim: RGBColor(145, 152, 161),
        grid: RGBColor(61, 68, 77),
        band: RGBColor(38, 44, 54),
        admitted: RGBColor(58, 150, 210),
        rejected: RGBColor(230, 159, 0),
    },
];

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

type Body = Box<dyn Fn(&Canvas<'_, '_>) -> Result<()>>;

/// A figure that can be drawn in any theme.
pub(crate) struct Figure {
    pub(crate) name: &'static str,
    /// What readers who do not see the figure get: a title, and what it shows.
    pub(crate) title: &'static str,
    pub(crate) description: String,
    pub(crate) height: i32,
    pub(crate) body: Body,
}

impl Figure {
    /// Draws it as SVG: without scripts, with text as text, in a font that the reader's system has.
    pub(crate) fn draw(&self, theme: &Theme) -> Result<String> {
        let mut svg = String::new();
        {
            let backend = SVGBackend::with_string(&mut svg, (WIDTH as u32, self.height as u32));
            let area = backend.into_drawing_area();
            area.fill(&theme.page)?;
            (self.body)(&Canvas { area: &area, theme })?;
            area.present()?;
        }
        let (open, rest) = svg.split_once('>').ok_or("no element")?;
        let (title, description) = (escaped(self.title), escaped(&self.description));
        Ok(format!(
            "{open} role=\"img\">\n<title>{title}</title>\n<desc>{description}</desc>{rest}"
        ))
    }
}

fn escaped(text: &str) -> String {
    let text = text.replace('&', "&amp;");
    text.replace('<', "&lt;").replace('>', "&gt;")
}

/// Where a figure is drawn.
pub(crate) struct Canvas<'a, 'b> {
    pub(crate) area: &'a Area<'b>,
    pub(crate) theme: &'a Theme,
}

/// The weight and colour of a text.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Weight {
    Bold,
    Normal,
    Dim,
}

impl<'a, 'b> Canvas<'a, 'b> {
    pub(crate) fn text(
        &self,
        text: &str,
        (x, y): (i32, i32),
        align: HPos,
        weight: Weight,
    ) -> Result<()> {
        let style = self.style(weight).pos(Pos::new(align, VPos::Center));
        self.area.draw_text(text, &style, (x, y))?;
        Ok(())
    }

    fn style(&self, weight: Weight) -> TextStyle<'a> {
        let font = match weight {
            Weight::Bold => FontStyle::Bold,
            Weight::Normal | Weight::Dim => FontStyle::Normal,
        };
        let colour = match weight {
            Weight::Dim => &self.theme.dim,
            Weight::Bold | Weight::Normal => &self.theme.text,
        };
        // The SVG backend divides sizes by this.
        let font = FontDesc::new(FontFamily::SansSerif, TEXT_PX * 1.24, font);
        font.into_text_style(&(0, 0)).color(colour)
    }

    /// A legend in one line: a mark, and what it means.
    pub(crate) fn legend(&self, entries: &[(Mark, &str, i32)]) -> Result<()> {
        let y = TOP / 2 + 1;
        for (mark, meaning, x) in entries {
            let (left, right) = (*x, x + 18);
            match mark {
                Mark::Filled(colour) => {
                    let corners = [(left, y - 7), (right - 4, y + 7)];
                    self.area.draw(&Rectangle::new(corners, colour.filled()))?;
                }
                Mark::Hollow(colour) => {
                    let (left, right) = (left + 1, right - 5);
                    let corners = [(left, y - 6), (right, y - 6), (right, y + 6), (left, y + 6)];
                    let outline = [&corners[..], &corners[..1]].concat();
                    let outline = PathElement::new(outline, colour.stroke_width(2));
                    self.area.draw(&outline)?;
                }
                Mark::Line(colour) => {
                    let line = vec![(left - 2, y), (right - 2, y)];
                    self.area
                        .draw(&PathElement::new(line, colour.stroke_width(2)))?;
                }
            }
            self.text(meaning, (right + 3, y), HPos::Left, Weight::Normal)?;
        }
        Ok(())
    }

    /// A panel, the `index`th of so many that share their horizontal axis: the last has its labels.
    pub(crate) fn panel(
        &self,
        panels: &Panels,
        index: usize,
        (name, about): (&str, &str),
        y: &Axis,
    ) -> Result<Chart<'a, 'b>> {
        let top = panels.top + (HEADING + panels.plot) * index as i32 + HEADING;
        let middle = top - HEADING / 2 + 2;
        self.text(name, (8, middle), HPos::Left, Weight::Bold)?;
        self.text(about, (WIDTH - 8, middle), HPos::Right, Weight::Normal)?;
        let labels = if index + 1 == panels.count { LABELS } else { 0 };
        let below = self.area.dim_in_pixel().1 as i32 - top - panels.plot - labels;
        let mut chart = ChartBuilder::on(self.area)
            .margin_top(top)
            .margin_bottom(below)
            .margin_right(RIGHT)
            .y_label_area_size(LEFT)
            .x_label_area_size(labels)
            .build_cartesian_2d(panels.x.clone(), y.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(self.theme.grid)
            .axis_style(self.theme.grid)
            .label_style(self.style(Weight::Dim))
            .draw()?;
        Ok(chart)
    }
}

/// Panels below each other.
pub(crate) struct Panels {
    top: i32,
    plot: i32,
    count: usize,
    x: Axis,
}

impl Panels {
    /// Panels whose plots have this height, below the legend.
    pub(crate) fn new(count: usize, plot: i32, x: Axis) -> Self {
        Self {
            top: TOP,
            plot,
            count,
            x,
        }
    }

    /// The same, further below.
    pub(crate) fn below(self, top: i32) -> Self {
        Self { top, ..self }
    }

    /// Where they end.
    pub(crate) fn bottom(&self) -> i32 {
        self.top + (HEADING + self.plot) * self.count as i32 + LABELS + 6
    }
}

/// Bars: where the first begins, the width from one to the next, and the gaps on both sides of each.
#[derive(Clone, Copy)]
pub(crate) struct Bars(pub(crate) f64, pub(crate) f64, pub(crate) f64);

impl Bars {
    /// Draws a bar between both values of each pair, if they differ.
    pub(crate) fn draw(
        self,
        chart: &mut Chart<'_, '_>,
        mark: Mark,
        values: impl IntoIterator<Item = (i64, i64)>,
    ) -> Result<()> {
        let Self(first, width, gap) = self;
        let bars = values.into_iter().enumerate();
        for (index, (from, to)) in bars.filter(|(_, (from, to))| from != to) {
            let left = first + width * index as f64;
            let (left, right) = (left + gap, left + width - gap);
            let (from, to) = (from as f64, to as f64);
            match mark {
                Mark::Filled(colour) => {
                    let bar = Rectangle::new([(left, from), (right, to)], colour.filled());
                    chart.draw_series([bar])?;
                }
                Mark::Hollow(colour) | Mark::Line(colour) => {
                    let corners = [(left, from), (left, to), (right, to), (right, from)];
                    let outline = [&corners[..], &corners[..1]].concat();
                    chart.draw_series([PathElement::new(outline, colour.stroke_width(2))])?;
                }
            }
        }
        Ok(())
    }
}

/// What a legend shows before a meaning.
#[derive(Clone, Copy)]
pub(crate) enum Mark {
    Filled(RGBColor),
    Hollow(RGBColor),
    Line(RGBColor),
}

/// The corners of a line in steps, which holds each value until the next.
pub(crate) fn steps(values: impl IntoIterator<Item = (f64, f64)>, end: f64) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::new();
    for (x, y) in values {
        match corners.last() {
            Some((_, before)) if *before == y => continue,
            Some((_, before)) => corners.push((x, *before)),
            None => {}
        }
        corners.push((x, y));
    }
    if let Some((_, last)) = corners.last().copied() {
        corners.push((end, last));
    }
    corners
}
