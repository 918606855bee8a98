//! The program: reads its arguments, serves, and ends on a signal.

use std::{
    fmt::Display,
    future::Future,
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use clap::{Parser, Subcommand};
use tokio::runtime::Runtime;
use tracing_subscriber::{Layer, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{
    commands::{self, Check, Convert},
    document,
    options::Options,
    reload::{self, Contents},
    rules::Rules,
    serve::{BoxError, Server},
};

/// A rate limit service for Envoy.
///
/// Exit codes: 0 after SIGTERM or SIGINT; 2 for wrong arguments, or documents with mistakes; 3 if the server can't be started or has
/// failed, or the output of a command can't be written.
#[derive(Debug, Parser)]
#[command(
    name = "tollgate-server",
    version,
    max_term_width = 100,
    args_conflicts_with_subcommands = true
)]
#[command(subcommand_negates_reqs = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    options: Options,
}

#[derive(Debug, Subcommand)]
enum Command {
    Check(Check),
    Convert(Convert),
}

/// Runs the program with the arguments of the process.
pub fn main() -> ExitCode {
    let Arguments { command, options } = Arguments::parse();
    match command {
        Some(Command::Check(check)) => commands::finish(check.run()),
        Some(Command::Convert(convert)) => commands::finish(convert.run()),
        None => serve(options),
    }
}

fn serve(options: Options) -> ExitCode {
    let log = tracing_subscriber::fmt::layer().with_writer(io::stderr);
    let log = log.with_ansi(io::stderr().is_terminal());
    tracing_subscriber::registry()
        .with(log.with_filter(options.log.clone()))
        .init();
    let contents = Contents::read(&options.config);
    let rules = match document::load(&options.config, options.reading) {
        Ok(rules) => rules,
        Err(mistakes) => return failure(2, &mistakes),
    };
    let runtime = Runtime::new().map_err(BoxError::from);
    let served = runtime.and_then(|runtime| runtime.block_on(run(options, rules, contents)));
    match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure(3, &error),
    }
}

/// Serves until a signal comes or a listener fails.
async fn run(options: Options, rules: Rules, contents: Contents) -> Result<(), BoxError> {
    let mut server = Server::start(&options, &rules).await?;
    drop(rules);
    // Before the addresses are printed: from then on a signal may come.
    let end = end_signal()?;
    let certificates = server.take_certificates();
    let reload = reload::watch(
        server.engine().clone(),
        certificates,
        options.config,
        options.reading,
        contents,
        options.config_interval,
    )?;
    print_addresses(&server)?;
    tokio::select! {
        () = end => server.stop().await,
        error = server.wait_for_failure() => Err(error),
        never = reload => match never {},
    }
}

fn print_addresses(server: &Server) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "gRPC: {}", server.grpc())?;
    writeln!(out, "HTTP: {}", server.http())?;
    match server.admin() {
        Some(admin) => writeln!(out, "admin: http://{admin}/admin")?,
        None => writeln!(out, "admin: none, without --admin-token")?,
    }
    out.flush()
}

/// Reports an error, which may have several lines.
fn failure(code: u8, error: &impl Display) -> ExitCode {
    // There is no other place to report it.
    let _ = writeln!(io::stderr().lock(), "error: {error}");
    code.into()
}

/// Handles SIGINT and SIGTERM from the call on. The future ends at the first of them.
#[cfg(unix)]
fn end_signal() -> io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};

    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}

/// Handles Ctrl-C from the call on. The future ends at the first.
#[cfg(not(unix))]
fn end_signal() -> io::Result<impl Future<Output = ()>> {
    let mut interrupt = tokio::signal::windows::ctrl_c()?;
    Ok(async move {
        let _ = interrupt.recv().await;
    })
}
