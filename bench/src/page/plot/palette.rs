//! The colours of the plots, on light and on dark pages.

use std::fmt::Write as _;

use plotters::style::RGBColor;

/// Text.
pub(super) const INK: RGBColor = RGBColor(0x1f, 0x23, 0x28);
/// Axes and their names.
pub(super) const MUTED: RGBColor = RGBColor(0x59, 0x63, 0x6e);
/// The grid.
pub(super) const GRID: RGBColor = RGBColor(0xd1, 0xd9, 0xe0);
/// What plots lie on: around lines that cross bars.
pub(super) const PANEL: RGBColor = RGBColor(0xf6, 0xf8, 0xfa);
/// What is to be reached.
pub(super) const TARGET: RGBColor = RGBColor(0xcf, 0x22, 0x2e);
/// What no series can do better than.
pub(super) const CEILING: RGBColor = RGBColor(0x1f, 0x23, 0x29);

/// Series by number. Lines also differ by their marks, for who cannot tell all of these apart.
const SERIES: [RGBColor; 8] = [
    RGBColor(0x0b, 0x62, 0xb8),
    RGBColor(0xc4, 0x50, 0x0b),
    RGBColor(0x1a, 0x7f, 0x37),
    RGBColor(0x82, 0x50, 0xdf),
    RGBColor(0xbf, 0x39, 0x89),
    RGBColor(0x8a, 0x63, 0x00),
    RGBColor(0x0e, 0x74, 0x90),
    RGBColor(0x6e, 0x77, 0x81),
];

/// Each colour and what takes its place on a dark page.
const DARK: [(RGBColor, &str); 14] = [
    (INK, "#e6edf3"),
    (MUTED, "#9da7b3"),
    (GRID, "#30363d"),
    (PANEL, "#161b22"),
    (TARGET, "#ff7b72"),
    (CEILING, "#e6edf4"),
    (SERIES[0], "#58a6ff"),
    (SERIES[1], "#f0883e"),
    (SERIES[2], "#56d364"),
    (SERIES[3], "#bc8cff"),
    (SERIES[4], "#ff7bb2"),
    (SERIES[5], "#e3b341"),
    (SERIES[6], "#39c5cf"),
    (SERIES[7], "#8b949e"),
];

/// The colour of a series by its number. They repeat.
pub(in crate::page) fn colour_of(series: usize) -> RGBColor {
    SERIES[series % SERIES.len()]
}

/// The style sheet that makes the plots dark.
pub(in crate::page) fn dark_style() -> String {
    let mut style = "@media (prefers-color-scheme: dark) {\n".to_owned();
    for (RGBColor(red, green, blue), dark) in DARK {
        for attribute in ["fill", "stroke"] {
            // Writing to a string does not fail. Plotters writes colours in upper case.
            let _ = writeln!(
                style,
                "  svg [{attribute}=\"#{red:02X}{green:02X}{blue:02X}\"] {{ {attribute}: {dark}; }}"
            );
        }
    }
    style + "}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_colour_is_one_of_its_own_and_has_a_dark_one() {
        let mut colours: Vec<_> = DARK.iter().map(|(RGBColor(r, g, b), _)| (*r, *g, *b)).collect();
        colours.sort_unstable();
        colours.dedup();
        assert_eq!(colours.len(), 6 + SERIES.len());
        let style = dark_style();
        assert!(style.contains("svg [fill=\"#0B62B8\"] { fill: #58a6ff; }"), "{style}");
        assert_eq!(style.matches("svg [").count(), 2 * DARK.len());
    }
}
