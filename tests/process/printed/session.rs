//! The commands of a document, run in a folder of their own on a clock of their own.

use std::{
    env,
    os::unix::fs::{PermissionsExt, symlink},
};

use regex::Regex;
use testkit::{Clock, TempDir};
use tollgate_tests::{prelude::*, repository, world::START};

use crate::printed::{
    page::{Block, Page},
    shell::Shell,
};

/// A shell, and the service that its commands have started.
pub(crate) struct Session {
    shell: Shell,
    folder: TempDir,
    clock: Clock,
    /// Ports in the document, and those that stand for them.
    ports: Vec<(u16, u16)>,
    /// How many lines of the service's output were compared.
    compared: usize,
}

impl Session {
    /// Starts a shell; `timers` are those of services.
    pub(crate) fn start(timers: Timers) -> Self {
        let folder = testkit::folder();
        let clock = Clock::at(START);
        let bin = folder.path().join("bin");
        fs::create_dir(&bin).expect("a folder");
        symlink(repository("examples"), folder.path().join("examples")).expect("a link");
        let session = Self {
            shell: Shell::start(folder.path()),
            folder,
            clock,
            ports: Vec::new(),
            compared: 0,
        };
        let on_clock = |timers| {
            let variables = session.clock.variables(timers);
            let variables = variables.map(|(name, value)| format!("{name}='{}'", value.display()));
            format!("env {}", variables.join(" "))
        };
        let service = on_clock(timers);
        let examples = target().join("examples");
        // `cargo run --example NAME ...`
        session.program(
            "cargo",
            &format!(
                "while [ \"$1\" != --example ]; do shift; done\n\
                 exec service {}/\"$2\"",
                examples.display()
            ),
        );
        session.program(
            "service",
            &format!("echo $$ >service.pid\nexec {service} PORT=0 \"$@\""),
        );
        let tollgate = target().join("tollgate");
        let stopped = on_clock(Timers::Stopped);
        session.program(
            "tollgate",
            &format!("exec {stopped} {} \"$@\"", tollgate.display()),
        );
        let cell = &session.clock.variables(timers)[1].1;
        // Sets the clock, a number of 8 bytes; and waits for a line of the service about that, if there will be one.
        session.program(
            "sleep",
            &format!(
                "lines() {{ grep -c \"$AFTER_SLEEP\" service.log; }}\n\
                 before=$(lines)\n\
                 now=$(od -An -t u8 '{cell}')\n\
                 hex=$(printf '%016x' $((now + $1 * 1000000)))\n\
                 for at in 14 12 10 8 6 4 2 0; do printf \"\\x${{hex:$at:2}}\"; done |\n\
                 dd of='{cell}' conv=notrunc status=none\n\
                 [ -z \"$AFTER_SLEEP\" ] || until [ $(lines) -gt $before ]; do command -p sleep 0.02; done",
                cell = cell.display()
            ),
        );
        // The terminal on which a question is answered by the second argument.
        session.program(
            "on-terminal",
            "mkfifo typed; exec 8>&1 9<>typed >printed\n\
             SHELL=/bin/sh script --quiet --return --command \"$1\" /dev/null <typed &\n\
             until grep -q '\\[y/N\\] ' printed; do command -p sleep 0.02; done\n\
             echo \"$2\" >&9; wait $!; cat printed >&8; rm typed printed",
        );
        session
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Writes a file into the folder.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.folder.path().join(name), text).expect("a file");
    }

    pub(crate) fn read(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    fn program(&self, name: &str, script: &str) {
        let path = self.folder.path().join("bin").join(name);
        fs::write(&path, format!("#!/bin/bash\n{script}\n")).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("its mode");
    }

    /// Sets a variable of the shell's environment.
    pub(crate) fn export(&mut self, name: &str, value: &str) {
        self.shell.run(&format!("export {name}='{value}'"));
    }

    /// Names a port in the document.
    pub(crate) fn port(&mut self, document: u16, real: u16) {
        self.ports.push((document, real));
    }

    /// The port that stands for one in the document.
    pub(crate) fn real_port(&self, document: u16) -> u16 {
        let found = self.ports.iter().find(|(port, _)| *port == document);
        found.expect("a port of a service").1
    }

    /// Runs the commands of a block, and compares what they print.
    pub(crate) fn run(&mut self, page: &mut Page, block: &Block) {
        assert_eq!(block.language, "console", "line {}", block.line);
        let printed = self.print(block);
        page.compare(block, &printed);
    }

    /// Runs the commands of the next blocks, and compares what they print.
    pub(crate) fn run_next(&mut self, page: &mut Page, blocks: usize) {
        for _ in 0..blocks {
            let block = page.expect("console");
            self.run(page, &block);
        }
    }

    /// The commands of a block, each with what it prints.
    pub(crate) fn print(&mut self, block: &Block) -> String {
        let mut printed = String::new();
        let mut lines = block.text.lines().peekable();
        while let Some(line) = lines.next() {
            let command = line.strip_prefix("$ ").expect("a command");
            printed.push_str(&format!("{line}\n"));
            let mut expected = Vec::new();
            while let Some(line) = lines.next_if(|line| !line.starts_with("$ ")) {
                expected.push(line);
            }
            let output = match command.contains("cargo run ") {
                true => self.start_service(command, expected.len()),
                false => self.command(command, &expected),
            };
            printed.push_str(&output);
            if !printed.ends_with('\n') {
                printed.push('\n');
            }
        }
        printed
    }

    /// Runs a command, and returns what it prints, as the document has it.
    pub(crate) fn command(&mut self, command: &str, expected: &[&str]) -> String {
        let mut command = command.to_owned();
        for (document, real) in &self.ports {
            command = command.replace(&format!(":{document}"), &format!(":{real}"));
        }
        let question = expected.first().and_then(|line| line.split_once("[y/N] "));
        if let Some((_, answer)) = question {
            command = format!("on-terminal '{command}' {answer}");
        }
        let printed = self.shell.run(&command);
        self.as_in_documents(&printed)
    }

    fn as_in_documents(&self, printed: &str) -> String {
        let mut printed = put_in(printed);
        for (document, real) in &self.ports {
            printed = printed.replace(&format!(":{real}"), &format!(":{document}"));
        }
        printed
    }

    /// Starts a service in the background, in place of the last one, and returns the first lines that it prints.
    pub(crate) fn start_service(&mut self, command: &str, lines: usize) -> String {
        self.shell.run(&format!(
            "[ ! -e service.pid ] || {{ kill $(cat service.pid); wait; rm service.*; }} 2>/dev/null\n\
             {{ {command}\n: >service.ended; }} >service.log 2>&1 </dev/null &"
        ));
        self.compared = 0;
        self.ports.clear();
        let first = self.next_lines(lines);
        self.listens(&first);
        self.as_in_documents(&first)
    }

    /// The first port on which a service listens stands for 3000, the next for 3001.
    fn listens(&mut self, printed: &str) {
        let address = Regex::new(r"http://127\.0\.0\.1:(\d+)").expect("a pattern");
        for found in address.captures_iter(printed) {
            let real = found[1].parse().expect("a port");
            if self.ports.iter().all(|(_, port)| *port != real) {
                self.ports.push((3000 + self.ports.len() as u16, real));
            }
        }
    }

    /// Starts the service of [`service`](crate::printed::service), whose limits are in `limits.toml`.
    pub(crate) fn start_service_of_file(&mut self, token: &str) {
        let test = env::current_exe().expect("this test's own path");
        let serve = "--exact printed::service::serves_the_limits_of_a_file --nocapture";
        let command = format!(
            "ADMIN_TOKEN={token} LIMITS=limits.toml service {} {serve}",
            test.display()
        );
        self.start_service(&command, 0);
        // Its first load is logged by another task than the one that listens. The shell forgets which `sleep` it has found.
        let wait = "until grep -q 'configuration file' service.log && grep -q http:// service.log || [ -e service.ended ]; do\n\
                    command -p sleep 0.02; done\n\
                    hash -r; grep http:// service.log";
        let line = self.shell.run(wait);
        self.listens(&line);
    }

    /// Compares a block with the lines that the service prints next.
    pub(crate) fn log(&mut self, page: &mut Page, block: &Block) {
        let next = self.next_lines(block.text.lines().count());
        page.compare(block, &self.as_in_documents(&next));
    }

    /// Waits for the next lines of the service: fewer if it ends, or takes too long.
    fn next_lines(&mut self, count: usize) -> String {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let ended = self.folder.path().join("service.ended").exists();
            let log = self.read("service.log");
            let all: Vec<&str> = log.split_inclusive('\n').skip(self.compared).collect();
            if all.len() >= count || ended || Instant::now() > deadline {
                let next = &all[..count.min(all.len())];
                self.compared += next.len();
                return next.concat();
            }
            thread::sleep(ms(10));
        }
    }
}

/// The folder of the programs, which cargo builds before it runs tests.
fn target() -> PathBuf {
    let test = env::current_exe().expect("this test's own path");
    let folder = test.ancestors().nth(2).expect("a target folder");
    for program in ["tollgate", "examples/quickstart"] {
        assert!(
            folder.join(program).exists(),
            "no {program}; `cargo build --workspace --all-features --bins --examples` makes it"
        );
    }
    folder.to_owned()
}

/// A pattern, and what documents print in its place. Ports have a list in each [`Session`], and times need
/// none: programs run on a clock that stands still.
const STAND_INS: [(&str, &str); 5] = [
    // The process of the admin API, and its machine: in JSON, and in the table of `tollgate watch`.
    (
        r#""pid":\d+,"host":"[^"]*""#,
        r#""pid":4711,"host":"api-1""#,
    ),
    (r"process \d+ on \S+", "process 4711 on api-1"),
    // How long calls of the store take: nothing, on a clock that stands still.
    (r"p50 \d+ µs, p99 \d+ µs", "p50 310 µs, p99 1210 µs"),
    // Prometheus has a clock of its own.
    (r"@\[\d+(\.\d+)?\]", "@[1800000000.000]"),
    // Tools print colours and line breaks of terminals.
    ("\r|\u{1b}\\[[0-9;]*m", ""),
];

/// The text as documents have it, but for ports.
fn put_in(text: &str) -> String {
    let mut text = text.to_owned();
    for (pattern, stand_in) in STAND_INS {
        let pattern = Regex::new(pattern).expect("a pattern");
        text = pattern.replace_all(&text, stand_in).into_owned();
    }
    text
}
