//! Groups of bars, each with the range of its quartiles.

use maud::Markup;
use plotters::{
    element::{PathElement, Rectangle},
    style::{Color, RGBColor},
};

use super::{Area, Axis, chart, draw, palette};
use crate::Spread;

/// Groups of bars.
#[derive(Clone, Debug)]
pub(in crate::page) struct Bars<'a> {
    /// What it shows, for who cannot see it.
    pub(in crate::page) title: &'a str,
    /// The unit.
    pub(in crate::page) y_label: &'a str,
    /// Names of the groups.
    pub(in crate::page) groups: Vec<String>,
    /// The series, one bar a group each.
    pub(in crate::page) series: Vec<BarSeries>,
    /// A line across all groups.
    pub(in crate::page) reference: Option<f64>,
}

/// Bars of one colour.
#[derive(Clone, Debug)]
pub(in crate::page) struct BarSeries {
    /// The colour.
    pub(in crate::page) colour: RGBColor,
    /// By group; none where it has no figure.
    pub(in crate::page) bars: Vec<Option<Bar>>,
}

/// A bar.
#[derive(Clone, Copy, Debug)]
pub(in crate::page) struct Bar {
    /// It ends at the median; the quartiles are a line on it.
    pub(in crate::page) spread: Spread,
    /// What it is to cost at most.
    pub(in crate::page) target: Option<f64>,
}

/// The part of a group that bars take.
const FILLED: f64 = 0.8;

impl Bars<'_> {
    /// The plot.
    pub(in crate::page) fn draw(&self, size: (u32, u32)) -> anyhow::Result<Markup> {
        let all = || self.series.iter().flat_map(|series| series.bars.iter().flatten());
        let highest = all()
            .flat_map(|bar| [bar.spread.third, bar.target.unwrap_or_default()])
            .chain(self.reference)
            .fold(0.0, f64::max);
        draw(size, self.title, |area| {
            let axes = (Axis::groups(&self.groups), Axis::from_zero(highest));
            let mut chart = chart(area, axes, ("", self.y_label), false)?;
            // A single bar a group would be a wall.
            let num_series = self.series.len() as f64;
            let width = FILLED / num_series.max(2.0);
            for (number, series) in self.series.iter().enumerate() {
                for (group, bar) in series.bars.iter().enumerate() {
                    let Some(bar) = bar else { continue };
                    let left = group as f64 + 0.5 + (number as f64 - num_series / 2.0) * width;
                    let right = left + width * 0.92;
                    let corners = [(left, 0.0), (right, bar.spread.median)];
                    chart.draw_series([Rectangle::new(corners, series.colour.filled())])?;
                    // A figure that was taken once has none.
                    if bar.spread.third > bar.spread.first {
                        chart.draw_series(whisker(f64::midpoint(left, right), width, bar.spread))?;
                    }
                    if let Some(target) = bar.target {
                        let line = [(left - width * 0.04, target), (right + width * 0.04, target)];
                        chart.draw_series(outlined(line))?;
                    }
                }
            }
            if let Some(at) = self.reference {
                let line = [(0.0, at), (self.groups.len() as f64, at)];
                chart.draw_series(outlined(line))?;
            }
            Ok(())
        })
    }
}

/// The line from the first quartile to the third, with a cap at each end.
fn whisker(x: f64, width: f64, spread: Spread) -> [PathElement<(f64, f64)>; 3] {
    let cap = width * 0.15;
    let (low, high) = (spread.first, spread.third);
    [[(x, low), (x, high)], [(x - cap, low), (x + cap, low)], [(x - cap, high), (x + cap, high)]]
        .map(|line| PathElement::new(line, palette::INK.stroke_width(1)))
}

/// A line that is seen on bars of every colour.
fn outlined(line: [(f64, f64); 2]) -> [PathElement<(f64, f64)>; 2] {
    [palette::PANEL.stroke_width(5), palette::TARGET.stroke_width(2)]
        .map(|style| PathElement::new(line, style))
}

pub(super) fn swatch(area: &Area<'_>, (width, height): (i32, i32), colour: RGBColor) -> anyhow::Result<()> {
    area.draw(&Rectangle::new([(2, 0), (width - 2, height)], colour.filled()))?;
    Ok(())
}

pub(super) fn target_swatch(area: &Area<'_>, (width, middle): (i32, i32)) -> anyhow::Result<()> {
    area.draw(&PathElement::new([(4, middle), (width - 4, middle)], palette::TARGET.stroke_width(2)))?;
    Ok(())
}
