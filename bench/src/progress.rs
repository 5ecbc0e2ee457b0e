//! How far a run is, on a terminal.

use std::{
    fmt,
    io::{IsTerminal, stderr},
};

use indicatif::{HumanCount, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

/// A bar of `len` steps on standard error, with the rate and the time left: nothing at all where that is not a
/// terminal.
///
/// `unit` is what a step is, in the plural. Finish it with `finish_and_clear` before printing results.
pub fn progress_bar(len: u64, unit: &str) -> ProgressBar {
    let target =
        if stderr().is_terminal() { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
    let template = format!("{{wide_bar}} {{human_pos}}/{{human_len}} {unit}, {{rate}}, {{eta}} left {{msg}}");
    let style = ProgressStyle::with_template(&template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        // Indicatif's own rate has four decimals.
        .with_key("rate", |state: &ProgressState, out: &mut dyn fmt::Write| {
            // A text that cannot be written is a bar that nobody sees.
            let _ = write!(out, "{}/s", HumanCount(whole(state.per_sec())));
        });
    ProgressBar::with_draw_target(Some(len), target).with_style(style)
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a rate; out of range it saturates"
)]
fn whole(rate: f64) -> u64 {
    rate.round() as u64
}
