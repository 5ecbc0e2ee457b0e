//! Plots as SVG, drawn by plotters.
//!
//! Every colour that is drawn is one of [`palette`]'s. The style sheet replaces each by its dark counterpart where the
//! reader wants dark pages, so a plot is drawn once. Nothing is painted behind it.

mod axis;
mod bars;
mod lines;
mod palette;

use maud::{Markup, PreEscaped, html};
use plotters::{
    backend::SVGBackend,
    chart::{ChartBuilder, ChartContext},
    coord::{Shift, cartesian::Cartesian2d},
    drawing::{DrawingArea, IntoDrawingArea},
    style::RGBColor,
};

pub(super) use self::{
    axis::Axis,
    bars::{Bar, BarSeries, Bars},
    lines::{Line, Lines},
    palette::{colour_of, dark_style},
};

/// What plotters writes as the size of a font is smaller by this factor than what it was told.
const FONT_SIZE: f64 = 12.0 * 1.24;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<Axis, Axis>>;

/// What a legend shows for a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Swatch {
    /// A bar.
    Bar(RGBColor),
    /// A line with the marks of that number.
    Line(RGBColor, usize),
    /// The dashed line of a ceiling.
    Ceiling,
    /// The line of a target.
    Target,
}

/// Draws an SVG of that many pixels and gives it a title, which a screen reader reads in its place.
fn draw(
    size: (u32, u32),
    title: &str,
    plot: impl FnOnce(&Area<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Markup> {
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        plot(&area)?;
        area.present()?;
    }
    let title = html! { title { (title) } }.into_string();
    let svg = svg.replacen("<svg ", "<svg role=\"img\" ", 1).replacen(">\n", &format!(">{title}\n"), 1);
    Ok(PreEscaped(svg))
}

/// A chart with its axes and grid drawn.
fn chart<'a, 'b>(
    area: &'a Area<'b>,
    (x, y): (Axis, Axis),
    (x_label, y_label): (&str, &str),
    has_x_grid: bool,
) -> anyhow::Result<Chart<'a, 'b>> {
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(if x_label.is_empty() { 28 } else { 44 })
        .y_label_area_size(62)
        .build_cartesian_2d(x, y)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_labels(Axis::TICKS_MAX)
        .y_labels(Axis::TICKS_MAX)
        .max_light_lines(0)
        .bold_line_style(palette::GRID)
        .axis_style(palette::MUTED)
        .label_style(("sans-serif", FONT_SIZE, &palette::INK))
        .axis_desc_style(("sans-serif", FONT_SIZE, &palette::MUTED))
        .y_desc(y_label);
    if !x_label.is_empty() {
        mesh.x_desc(x_label);
    }
    if !has_x_grid {
        mesh.disable_x_mesh();
    }
    mesh.draw()?;
    Ok(chart)
}

/// A list of what each series looks like.
pub(super) fn legend(series: &[(String, Swatch)]) -> anyhow::Result<Markup> {
    let swatches: Vec<_> =
        series.iter().map(|(name, swatch)| Ok((name, swatch.draw()?))).collect::<anyhow::Result<_>>()?;
    Ok(html! {
        ul class="legend" {
            @for (name, swatch) in swatches { li { (swatch) span { (name) } } }
        }
    })
}

impl Swatch {
    fn draw(self) -> anyhow::Result<Markup> {
        const SIZE: (i32, i32) = (30, 14);
        let middle = SIZE.1 / 2;
        draw((30, 14), "", |area| match self {
            Self::Bar(colour) => bars::swatch(area, SIZE, colour),
            Self::Line(colour, marks) => lines::swatch(area, (SIZE.0, middle), colour, marks),
            Self::Ceiling => lines::ceiling_swatch(area, (SIZE.0, middle)),
            Self::Target => bars::target_swatch(area, (SIZE.0, middle)),
        })
    }
}

/// A figure with its caption.
pub(super) fn figure(caption: &str, plot: &Markup) -> Markup {
    html! { figure { figcaption { (caption) } (plot) } }
}
