//! What libFuzzer says, as one line a target, or as what it has found.

/// Above the [lines](Figures::line).
pub(crate) const HEAD: &str = "target         executions     a second   coverage   features   corpus";

/// Of one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Figures {
    executions: u64,
    executions_per_s: u64,
    /// Edges between blocks of code that ran.
    coverage: u64,
    /// The same with how often, and with what was compared.
    features: u64,
    /// Inputs that are kept.
    corpus: u64,
}

impl Figures {
    /// Reads the log of a run that ended by itself.
    pub(crate) fn read(log: &str) -> Option<Self> {
        let done = log.lines().rev().find(|line| line.contains("\tDONE"))?;
        let after = |name: &str| {
            let rest = done.split_once(&format!(" {name} "))?.1;
            let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        let stat = |name: &str| {
            log.lines().find_map(|line| line.strip_prefix(&format!("stat::{name}:")))?.trim().parse().ok()
        };
        Some(Self {
            executions: stat("number_of_executed_units")?,
            executions_per_s: stat("average_exec_per_sec")?,
            coverage: after("cov:")?,
            features: after("ft:")?,
            corpus: after("corp:")?,
        })
    }

    pub(crate) fn line(&self, target: &str) -> String {
        let Self { executions, executions_per_s, coverage, features, corpus } = self;
        format!(
            "{target:<13} {executions:>11} {executions_per_s:>12} {coverage:>10} {features:>10} {corpus:>8}"
        )
    }
}

/// What a run that failed has found: the panic, the input, and how to see it again.
pub(crate) fn finding(target: &str, log: &str) -> String {
    let lines = log.lines().map(str::trim_end);
    let reason: Vec<&str> = lines
        .skip_while(|line| !line.contains("panicked at") && !line.contains("ERROR: libFuzzer"))
        .take_while(|line| !line.starts_with("note: run with") && !line.starts_with("SUMMARY"))
        .take(12)
        .collect();
    let input =
        log.lines().find_map(|line| line.split_once("Test unit written to ")).map(|(_, path)| path.trim());
    let executions = log.lines().find_map(|line| line.strip_prefix("stat::number_of_executed_units:"));
    let after = executions.map_or_else(String::new, |count| format!(" after {} executions", count.trim()));
    let said = if reason.is_empty() { log.trim().to_owned() } else { reason.join("\n") };
    let input = match input {
        Some(input) => format!("input   {input}\n  replay  cargo xtask fuzz --target {target} {input}"),
        None => "no input was written".to_owned(),
    };
    format!("{target}: FAILED{after}\n{said}\n  {input}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "\
INFO: Seed: 1
#2\tINITED cov: 8 ft: 8 corp: 1/1b exec/s: 0 rss: 27Mb
#1983506\tDONE   cov: 526 ft: 1877 corp: 545/20Kb lim: 1024 exec/s: 76288 rss: 28Mb
Done 1983506 runs in 26 second(s)
stat::number_of_executed_units: 1983506
stat::average_exec_per_sec:     76288
stat::new_units_added:          540
";

    #[test]
    fn the_figures_of_a_run_are_read() {
        let figures = Figures::read(LOG).unwrap();
        let expected = Figures {
            executions: 1_983_506,
            executions_per_s: 76_288,
            coverage: 526,
            features: 1877,
            corpus: 545,
        };
        assert_eq!(figures, expected);
        let line = figures.line("recovery");
        assert_eq!(line, "recovery          1983506        76288        526       1877      545");
        assert_eq!(line.len(), HEAD.len());
    }

    #[test]
    fn a_log_that_breaks_off_has_no_figures() {
        let cut = LOG.find("stat::average").unwrap();
        assert_eq!(Figures::read(&LOG[..cut]), None);
        assert_eq!(Figures::read(""), None);
    }

    #[test]
    fn a_finding_names_the_panic_the_input_and_how_to_replay_it() {
        let log = "\
INFO: Seed: 1
thread '<unnamed>' (1) panicked at src/a.rs:1:2:
valid in another slot
note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace
==1== ERROR: libFuzzer: deadly signal
stat::number_of_executed_units: 77
artifact_prefix='a/'; Test unit written to a/crash-1
";
        assert_eq!(
            finding("record", log),
            "record: FAILED after 77 executions\n\
             thread '<unnamed>' (1) panicked at src/a.rs:1:2:\n\
             valid in another slot\n  \
             input   a/crash-1\n  \
             replay  cargo xtask fuzz --target record a/crash-1"
        );
    }

    #[test]
    fn a_run_that_hangs_or_tells_nothing_is_shown_all_the_same() {
        let log = "INFO\n==1== ERROR: libFuzzer: timeout after 10 seconds\nSUMMARY: libFuzzer: timeout\n";
        assert!(
            finding("store", log)
                .contains("ERROR: libFuzzer: timeout after 10 seconds\n  no input was written")
        );
        assert!(finding("store", "cannot start").contains("cannot start"));
    }
}
