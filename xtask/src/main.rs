//! The tasks of the workspace: `cargo xtask` lists them.

#![forbid(unsafe_code)]

mod bench;
mod ci;
mod conformance;
mod counts;
mod cuda_features;
mod flags;
mod fuzz;
mod gpu_check;
mod loom;
mod miri;
mod process;
mod ptx;
mod sanitize;
mod sim;
mod tidy;

use std::process::ExitCode;

use flags::Task;

fn main() -> ExitCode {
    let task = match Task::parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(error) => {
            eprintln!("error: {error}");
            return ExitCode::from(flags::MISUSE_STATUS);
        }
    };
    match task {
        Task::Help => {
            print!("{}", flags::HELP);
            ExitCode::SUCCESS
        }
        Task::Bench(arguments) => bench::run(arguments),
        Task::Ci => ci::run(),
        Task::Conformance(dir) => conformance::run(&dir),
        Task::Counts(mode) => counts::run(mode),
        Task::Fuzz(options) => fuzz::run(&options),
        Task::GpuCheck(options) => gpu_check::run(&options),
        Task::Loom => loom::run(),
        Task::Miri(arguments) => miri::run(&arguments),
        Task::Sanitize(sanitizer) => sanitize::run(sanitizer),
        Task::CudaFeatures(is_all) => cuda_features::run(is_all),
        Task::Ptx(mode) => ptx::run(mode),
        Task::Sim(arguments) => sim::run(arguments),
        Task::Soak(what, arguments) => bench::soak(what, arguments),
        Task::Tidy => tidy::run(),
    }
}
