//! Where the tests find data that is not part of the project.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

/// The directory of public traces, if there is one: `$KVO_SHARED/traces`, by default `../shared/traces` beside the
/// workspace.
pub(crate) fn shared_traces() -> Option<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("bench/ lies in the workspace");
    // A relative path counts from the workspace, wherever the test runs.
    let shared = workspace.join(std::env::var_os("KVO_SHARED").unwrap_or_else(|| "../shared".into()));
    let traces = shared.join("traces");
    if traces.is_dir() {
        return Some(traces);
    }
    // Written past the capture of the test harness: a skip is to be seen.
    let _ = writeln!(
        std::io::stderr(),
        "SKIPPED: no public traces at {}; set KVO_SHARED to the directory above them",
        traces.display()
    );
    None
}
