//! The page of `--report` in a real browser: it opens without an error, and its screenshot shows what it should.
//!
//! The browser is chromium, by one of its usual names or as `KVO_BROWSER` names it. Where there is none, the test says
//! loudly that it skips.

use std::{
    collections::HashMap,
    env, fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

/// A browser that takes longer hangs.
const PATIENCE: Duration = Duration::from_mins(2);

/// The blue of the first series, on light and on dark pages.
const FIRST_SERIES: [[u8; 3]; 2] = [[0x0b, 0x62, 0xb8], [0x58, 0xa6, 0xff]];
/// The page behind it.
const BACKGROUND: [[u8; 3]; 2] = [[0xff, 0xff, 0xff], [0x0d, 0x11, 0x17]];

struct Browser {
    program: PathBuf,
}

struct Ran {
    stdout: String,
    stderr: String,
}

impl Browser {
    fn find() -> Option<Self> {
        const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
        let named = env::var_os("KVO_BROWSER").map(PathBuf::from);
        let candidates = named.map_or_else(|| NAMES.iter().map(PathBuf::from).collect(), |named| vec![named]);
        let runs = |program: &PathBuf| {
            Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success())
        };
        let found = candidates.iter().find(|program| runs(program));
        if found.is_none() {
            // Written past the capture of the test harness: a skip is to be seen.
            let _ = writeln!(
                std::io::stderr(),
                "SKIPPED: no browser to open the bench report in; install chromium or set KVO_BROWSER"
            );
        }
        found.map(|program| Self { program: program.clone() })
    }

    /// Runs it without a window on `page`, as a user that it never had before.
    fn run(&self, page: &Path, arguments: &[&str]) -> Ran {
        let user = tempfile::tempdir().unwrap();
        let mut child = Command::new(&self.program)
            .args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"])
            .args(["--disable-background-networking", "--disable-component-update", "--disable-sync"])
            .args(["--hide-scrollbars", "--force-device-scale-factor=1", "--enable-logging=stderr"])
            .arg(format!("--user-data-dir={}", user.path().display()))
            .args(arguments)
            .arg(format!("file://{}", page.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = read_to_end(child.stdout.take().unwrap());
        let stderr = read_to_end(child.stderr.take().unwrap());
        let started = Instant::now();
        let status = loop {
            if let Some(status) = child.try_wait().unwrap() {
                break status;
            }
            if started.elapsed() > PATIENCE {
                child.kill().unwrap();
                child.wait().unwrap();
                panic!("{} did not end in {PATIENCE:?}: {}", self.program.display(), stderr.join().unwrap());
            }
            thread::sleep(Duration::from_millis(20));
        };
        let ran = Ran { stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() };
        assert!(status.success(), "{status}: {}", ran.stderr);
        ran
    }

    fn screenshot(&self, page: &Path, size: (u32, u32), is_dark: bool) -> Picture {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("shot.png");
        let (screenshot, window) =
            (format!("--screenshot={}", file.display()), format!("--window-size={},{}", size.0, size.1));
        let scheme = format!("--blink-settings=preferredColorScheme={}", u8::from(!is_dark));
        let ran = self.run(page, &[&screenshot, &window, &scheme]);
        assert_eq!(ran.console(), Vec::<&str>::new());
        Picture::read(&file)
    }
}

fn read_to_end(mut pipe: impl Read + Send + 'static) -> thread::JoinHandle<String> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // A pipe that breaks has said what it said.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Ran {
    /// What the page had the browser complain of. The browser itself complains of the machine in other lines.
    fn console(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| line.contains("CONSOLE")).collect()
    }
}

struct Picture {
    size: (u32, u32),
    pixels: Vec<[u8; 3]>,
}

impl Picture {
    fn read(file: &Path) -> Self {
        let file = std::io::BufReader::new(fs::File::open(file).unwrap());
        let mut decoder = png::Decoder::new(file);
        decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
        let mut reader = decoder.read_info().unwrap();
        let mut bytes = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut bytes).unwrap();
        let samples = info.color_type.samples();
        assert!(samples >= 3, "a screenshot in colour, not {:?}", info.color_type);
        let pixels =
            bytes[..info.buffer_size()].chunks_exact(samples).map(|pixel| [pixel[0], pixel[1], pixel[2]]);
        Self { size: (info.width, info.height), pixels: pixels.collect() }
    }

    fn counts(&self) -> HashMap<[u8; 3], usize> {
        let mut counts = HashMap::new();
        for pixel in &self.pixels {
            *counts.entry(*pixel).or_default() += 1;
        }
        counts
    }

    /// Rows that hold a pixel of that colour.
    fn rows_with(&self, colour: [u8; 3]) -> usize {
        self.pixels.chunks(self.size.0 as usize).filter(|row| row.contains(&colour)).count()
    }
}

/// The page of a smoke run of every bench, and of one beside a peer with a name that would be markup.
fn page(dir: &Path) -> PathBuf {
    let run = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_kvo-bench"))
            .args(arguments)
            .env("KVO_BENCH_OUT", dir)
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{text}");
    };
    run(&["all", "--smoke"]);
    let micro = fs::read(dir.join("micro-smoke.json")).unwrap();
    let mut compare: Value = serde_json::from_slice(&micro).unwrap();
    compare["command"] = json!("compare");
    for figure in compare["results"]["sizes"][0]["figures"].as_array_mut().unwrap() {
        if figure["subject"] == "floor" {
            figure["subject"] = json!("<script>console.error('escaped')</script>");
        }
    }
    fs::write(dir.join("compare-smoke.json"), compare.to_string()).unwrap();
    run(&["report"]);
    dir.join("report.html")
}

#[test]
fn the_report_opens_without_an_error_and_looks_right() {
    let Some(browser) = Browser::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let page = page(dir.path());

    let ran = browser.run(&page, &["--dump-dom"]);
    assert_eq!(ran.console(), Vec::<&str>::new());
    for command in ["micro", "compare", "policies", "replay", "nvme"] {
        let start = ran.stdout.find(&format!("<section id=\"{command}\"")).expect(command);
        let section = ran.stdout[start..].split("</section>").next().unwrap();
        let svgs = section.matches("<svg role=\"img\"").count();
        assert!(svgs >= 2 && section.contains("<table"), "{command} has {svgs} plots: {section}");
        assert!(section.contains("cargo xtask bench"), "{command} says how to run it again");
    }
    assert!(!ran.stdout.contains("id=\"problems\""));
    assert!(!ran.stdout.contains("<script"), "a name became markup");

    for (is_dark, (series, background)) in
        [false, true].into_iter().zip(FIRST_SERIES.into_iter().zip(BACKGROUND))
    {
        let size = (1200, 3600);
        let picture = browser.screenshot(&page, size, is_dark);
        assert_eq!(picture.size, size);
        let counts = picture.counts();
        assert_eq!(picture.pixels[0], background, "dark: {is_dark}");
        assert!(counts.len() > 50, "dark: {is_dark}: only {} colours", counts.len());
        // Bars of the first series, in several plots below each other.
        let (pixels, rows) = (counts.get(&series).copied().unwrap_or_default(), picture.rows_with(series));
        assert!(
            pixels > 20_000 && rows > 400,
            "dark: {is_dark}: {pixels} pixels in {rows} rows of the first series"
        );
        let text = picture.pixels.iter().filter(|pixel| **pixel != background).count();
        assert!(text < picture.pixels.len() * 9 / 10, "dark: {is_dark}: most of the page is covered");
    }
}

#[test]
fn an_error_of_a_page_is_seen() {
    let Some(browser) = Browser::find() else { return };
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page.html");
    fs::write(&page, "<!DOCTYPE html><title>x</title><script>console.error('seen')</script>").unwrap();
    let ran = browser.run(&page, &["--dump-dom"]);
    assert!(ran.console().iter().any(|line| line.contains("seen")), "{}", ran.stderr);
    // What the report's own page forbids.
    let forbids = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'\">";
    fs::write(
        &page,
        format!("<!DOCTYPE html><title>x</title>{forbids}<script>document.title = 'run'</script>"),
    )
    .unwrap();
    let ran = browser.run(&page, &["--dump-dom"]);
    assert!(!ran.console().is_empty() && ran.stdout.contains("<title>x</title>"), "{}", ran.stdout);
}
