//! How far a run is, on a terminal.

use std::io::{IsTerminal, stderr};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// A bar of `len` steps on standard error, with the rate and the time left: nothing at all where that is not a
/// terminal.
///
/// `unit` is what a step is, in the plural. Finish it with `finish_and_clear` before printing results.
pub fn progress_bar(len: u64, unit: &str) -> ProgressBar {
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let template =
        format!("{{wide_bar}} {{human_pos}}/{{human_len}} {unit}, {{per_sec:.0}}, {{eta}} left {{msg}}");
    let style = ProgressStyle::with_template(&template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(len), target).with_style(style)
}
