//! The commands that call the admin API.

mod blocks;
mod explain;
mod keys;
mod overrides;
mod policies;
mod process;
mod watch;

use clap::{Args, Subcommand};

use crate::{
    client::Connection,
    exit::{Failure, Outcome},
    output::Output,
};

/// A command that calls the admin API.
#[derive(Debug, Subcommand)]
pub(crate) enum Operate {
    /// List the policies in force.
    Policies(Connection),
    /// Show how much of its quota a key has left, without charging it.
    Peek(On<keys::Peek>),
    /// Give a key its full quota back, in all processes.
    Reset(On<keys::Reset>),
    /// Return units to a key, in all processes.
    Credit(On<keys::Credit>),
    /// List the callers whose charges count now, under a strategy that records them.
    Callers(On<keys::Callers>),
    /// Block a key under a ban, in all processes.
    Block(On<blocks::Block>),
    /// End the block of a key, in all processes.
    Unblock(On<blocks::Unblock>),
    /// List the keys that are blocked now, by hand or by rejections, in any process.
    Blocks(On<blocks::Blocks>),
    /// Set, remove and list the limits of single keys.
    #[command(subcommand)]
    Override(overrides::Override),
    /// Say which policies apply to a request, and whether it would be admitted. Nothing is charged.
    ///
    /// The exit code is 1 if it would be rejected.
    Explain(On<explain::Explain>),
    /// List the keys that one process has rejected most often.
    Top(On<process::Top>),
    /// Show what shadow policies would have rejected, in one process.
    Shadows(Connection),
    /// Say whether the store works. The exit code is 1 if it doesn't.
    Health(Connection),
    /// Show a live table of what one process admits and rejects. Ctrl-C ends it.
    Watch(On<watch::Watch>),
}

/// The options of a command, and what it calls.
#[derive(Debug, Args)]
pub(crate) struct On<T: Args> {
    #[command(flatten)]
    options: T,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) fn run(command: &Operate, output: &Output) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::unreachable("the runtime", error))?;
    runtime.block_on(async {
        match command {
            Operate::Policies(connection) => policies::run(connection, output).await,
            Operate::Peek(on) => on.options.run(&on.connection, output).await,
            Operate::Reset(on) => on.options.run(&on.connection, output).await,
            Operate::Credit(on) => on.options.run(&on.connection, output).await,
            Operate::Callers(on) => on.options.run(&on.connection, output).await,
            Operate::Block(on) => on.options.run(&on.connection, output).await,
            Operate::Unblock(on) => on.options.run(&on.connection, output).await,
            Operate::Blocks(on) => on.options.run(&on.connection, output).await,
            Operate::Override(command) => command.run(output).await,
            Operate::Explain(on) => on.options.run(&on.connection, output).await,
            Operate::Top(on) => on.options.run(&on.connection, output).await,
            Operate::Shadows(connection) => process::run_shadows(connection, output).await,
            Operate::Health(connection) => process::run_health(connection, output).await,
            Operate::Watch(on) => on.options.run(&on.connection, output).await,
        }
    })
}
