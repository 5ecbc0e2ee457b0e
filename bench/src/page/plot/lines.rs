//! Lines with marks, told apart without colour too.

use maud::Markup;
use plotters::{
    backend::SVGBackend,
    element::{Circle, Cross, DynElement, EmptyElement, IntoDynElement, PathElement, Polygon, Rectangle},
    series::{DashedLineSeries, LineSeries},
    style::{Color, RGBColor},
};

use super::{Area, Axis, chart, draw, palette};

/// Lines over a logarithmic axis.
#[derive(Clone, Debug)]
pub(in crate::page) struct Lines<'a> {
    /// What it shows, for who cannot see it.
    pub(in crate::page) title: &'a str,
    /// What the horizontal axis counts.
    pub(in crate::page) x_label: &'a str,
    /// What the vertical axis shows.
    pub(in crate::page) y_label: &'a str,
    /// The vertical axis.
    pub(in crate::page) y: Axis,
    /// The lines; the first is drawn first.
    pub(in crate::page) series: Vec<Line>,
}

/// A line.
#[derive(Clone, Debug)]
pub(in crate::page) struct Line {
    /// Its number decides colour and marks; none is the dashed line of a ceiling.
    pub(in crate::page) number: Option<usize>,
    /// From left to right.
    pub(in crate::page) points: Vec<(f64, f64)>,
    /// Where points are uncertain: the place, and from where to where.
    pub(in crate::page) errors: Vec<(f64, f64, f64)>,
}

/// Half the width of a mark, in pixels.
const MARK: i32 = 4;

impl Lines<'_> {
    /// The plot.
    pub(in crate::page) fn draw(&self, size: (u32, u32)) -> anyhow::Result<Markup> {
        let xs = || self.series.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
        let (low, high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
        draw(size, self.title, |area| {
            let axes = (Axis::log(low.min(high), high), self.y.clone());
            let mut chart = chart(area, axes, (self.x_label, self.y_label), true)?;
            for line in &self.series {
                let colour = line.number.map_or(palette::CEILING, palette::colour_of);
                let bars = line.errors.iter().map(|&(x, low, high)| [(x, low), (x, high)]);
                chart.draw_series(bars.map(|bar| PathElement::new(bar, colour.stroke_width(1))))?;
                let points = line.points.iter().copied();
                match line.number {
                    None => {
                        chart.draw_series(DashedLineSeries::new(points, 6, 4, colour.stroke_width(2)))?;
                    }
                    Some(number) => {
                        chart.draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))?;
                        chart.draw_series(
                            points.map(|point| EmptyElement::at(point) + mark((0, 0), number, colour)),
                        )?;
                    }
                }
            }
            Ok(())
        })
    }
}

/// The mark of a series around a pixel.
fn mark<'a>(
    (x, y): (i32, i32),
    number: usize,
    colour: RGBColor,
) -> DynElement<'static, SVGBackend<'a>, (i32, i32)> {
    let filled = colour.filled();
    match number % 4 {
        0 => Circle::new((x, y), MARK, filled).into_dyn(),
        1 => Rectangle::new([(x - MARK + 1, y - MARK + 1), (x + MARK - 1, y + MARK - 1)], filled).into_dyn(),
        2 => Polygon::new([(x, y - MARK - 1), (x - MARK - 1, y + MARK), (x + MARK + 1, y + MARK)], filled)
            .into_dyn(),
        _ => Cross::new((x, y), MARK, colour.stroke_width(2)).into_dyn(),
    }
}

pub(super) fn swatch(
    area: &Area<'_>,
    (width, middle): (i32, i32),
    colour: RGBColor,
    number: usize,
) -> anyhow::Result<()> {
    area.draw(&PathElement::new([(0, middle), (width, middle)], colour.stroke_width(2)))?;
    area.draw(&mark((width / 2, middle), number, colour))?;
    Ok(())
}

pub(super) fn ceiling_swatch(area: &Area<'_>, (width, middle): (i32, i32)) -> anyhow::Result<()> {
    for start in (0..width).step_by(10) {
        let line = [(start, middle), ((start + 6).min(width), middle)];
        area.draw(&PathElement::new(line, palette::CEILING.stroke_width(2)))?;
    }
    Ok(())
}
