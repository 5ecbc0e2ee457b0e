//! `cargo xtask tidy`: rules of the house that no compiler checks, over the files that git knows.

mod checks;
mod code;
mod manifest;

use std::{
    fmt,
    process::{Command, ExitCode},
};

use crate::process::workspace;

/// A text file of the project.
#[derive(Debug)]
struct Source {
    /// Relative to the workspace, with `/`.
    path: String,
    text: String,
}

/// A line that breaks a rule.
#[derive(Debug, PartialEq, Eq)]
struct Complaint {
    path: String,
    /// From 1; 0 where it is the whole file.
    line: usize,
    message: String,
}

impl fmt::Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.message),
            line => write!(f, "{}:{line}: {}", self.path, self.message),
        }
    }
}

pub(crate) fn run() -> ExitCode {
    let sources = match sources() {
        Ok(sources) => sources,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(2);
        }
    };
    let complaints = checks::all(&sources);
    for complaint in &complaints {
        println!("{complaint}");
    }
    println!("tidy: {} files, {} complaints", sources.len(), complaints.len());
    if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Every text file that is tracked, or new and not ignored.
fn sources() -> Result<Vec<Source>, String> {
    let output = Command::new("git")
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .current_dir(workspace())
        .output()
        .map_err(|error| format!("tidy lists files with git, which cannot be run: {error}"))?;
    if !output.status.success() {
        return Err(format!(
            "tidy lists files with git, which failed: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ));
    }
    let mut sources = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
        // Deleted but not yet committed, a symbolic link to nowhere, or not text: nothing to read.
        if let Ok(text) = std::fs::read_to_string(workspace().join(path)) {
            sources.push(Source { path: path.to_owned(), text });
        }
    }
    if sources.is_empty() {
        return Err("git knows no file of the workspace".to_owned());
    }
    Ok(sources)
}
