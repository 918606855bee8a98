//! Commands, such as those of health checks. They are not in lanes, and each node has a connection for them: a megabyte of replies to `SCAN`
//! delays no request.

use std::time::Duration;

use redis::{Cmd, RedisError, Value};
use tokio::{
    sync::{Mutex, oneshot},
    time::timeout,
};

use super::{
    Command, ServerRef, Target,
    actor::{Actor, Done},
    node::NodeId,
    server::Server,
    slots::{self, Redirect, no_owner},
    wire::{CallError, Wire},
};
use crate::{error::StoreError, redis::error_class};

/// Redirects that a command follows.
const MAX_REDIRECTS: u32 = 5;

/// A command that is run on a node.
pub(super) struct CommandRun {
    cmd: Cmd,
    timeout: Duration,
    reply: oneshot::Sender<Result<Value, StoreError>>,
    /// Redirects that were followed.
    redirects: u32,
}

/// A command that has a reply or an error.
pub(super) struct EndedCommand {
    node: NodeId,
    run: CommandRun,
    result: Result<Result<Value, RedisError>, StoreError>,
}

impl<W: Wire> Actor<W> {
    pub(super) fn start_command(&mut self, command: Command) {
        let needs_slots = match &command {
            Command::Run { target, .. } => match target {
                Target::Tag(tag) => self.lanes[*tag].node.is_none(),
                Target::Name(_) => false,
            },
            Command::Servers(_) => self.lanes.iter().any(|lane| lane.node.is_none()),
        };
        if needs_slots && self.slots.is_some() {
            self.parked.push(command);
            return self.want_slots(self.now());
        }
        self.start_routed(command);
    }

    /// Starts a command whose node the slot map has, if any has it.
    pub(super) fn start_routed(&mut self, command: Command) {
        match command {
            Command::Run {
                target,
                cmd,
                timeout,
                reply,
            } => {
                let node = match &target {
                    Target::Tag(tag) => self.lanes[*tag].node,
                    Target::Name(name) => {
                        let mut nodes = self.nodes.iter();
                        let node = nodes.find(|(_, node)| node.server.name == *name);
                        node.map(|(id, _)| *id)
                    }
                };
                match node {
                    Some(node) => {
                        let run = CommandRun {
                            cmd,
                            timeout,
                            reply,
                            redirects: 0,
                        };
                        self.run_command(node, run, false);
                    }
                    None => drop(reply.send(Err(no_owner()))),
                }
            }
            Command::Servers(reply) => {
                let _ = reply.send(self.servers());
            }
        }
    }

    pub(super) fn servers(&self) -> Result<Vec<ServerRef>, StoreError> {
        let mut servers = Vec::<ServerRef>::new();
        for (tag, lane) in self.lanes.iter().enumerate() {
            let node = lane.node.and_then(|id| self.nodes.get(&id));
            let Some(node) = node else {
                return Err(no_owner());
            };
            let name = &node.server.name;
            if !servers.iter().any(|known| known.name == *name) {
                servers.push(ServerRef {
                    name: name.clone(),
                    tag,
                });
            }
        }
        Ok(servers)
    }

    pub(super) fn run_command(&mut self, id: NodeId, run: CommandRun, asking: bool) {
        let Some(node) = self.nodes.get(&id) else {
            return;
        };
        let (wire, server) = (self.wire.clone(), node.server.clone());
        let command_connection = node.command_connection.clone();
        self.start(async move {
            let result = run_on_node(
                &*wire,
                &server,
                &command_connection,
                &run.cmd,
                asking,
                run.timeout,
            )
            .await;
            Done::Command(EndedCommand {
                node: id,
                run,
                result,
            })
        });
    }

    pub(super) fn end_command(&mut self, ended: EndedCommand) {
        let EndedCommand {
            node,
            mut run,
            result,
        } = ended;
        let host = self.nodes.get(&node).and_then(|node| node.address.as_ref());
        let host = host.map_or(String::new(), |(host, _)| host.clone());
        if let Ok(Err(error)) = &result
            && self.slots.is_some()
            && run.redirects < MAX_REDIRECTS
            && let Some(redirect) = slots::redirect(error, &host)
        {
            run.redirects += 1;
            let (to, asking) = match redirect {
                Redirect::Moved(host, port) => {
                    self.want_slots(self.now());
                    (self.node_at(&host, port), false)
                }
                Redirect::Ask(host, port) => (self.node_at(&host, port), true),
                Redirect::TryAgain => (Some(node), false),
            };
            if let Some(to) = to {
                return self.run_command(to, run, asking);
            }
        }
        if result.is_err() {
            self.want_slots(self.now());
        }
        let result =
            result.and_then(|reply| reply.map_err(|error| error_class::to_store_error(&error)));
        let _ = run.reply.send(result);
    }
}

/// Runs an idempotent command on a node's connection for commands, which is opened if there is none. If an open one breaks, the command is
/// sent once more on a new one. A connection without a reply is not used again.
pub(super) async fn run_on_node<W: Wire>(
    wire: &W,
    server: &Server,
    command_connection: &Mutex<Option<W::Connection>>,
    cmd: &Cmd,
    asking: bool,
    within: Duration,
) -> Result<Result<Value, RedisError>, StoreError> {
    let run = async {
        loop {
            let mut open = command_connection.lock().await;
            let (connection, is_new) = match &*open {
                Some(connection) => (connection.clone(), false),
                None => (wire.connect(server, within).await?, true),
            };
            if is_new {
                *open = Some(connection.clone());
            }
            drop(open);
            match wire.call(&connection, cmd.clone(), asking).await {
                Ok(value) => return Ok(Ok(value)),
                Err(CallError::Failed(error)) if error.code().is_some() => return Ok(Err(error)),
                // It was closed while it was idle.
                Err(_) if !is_new => drop(command_connection.lock().await.take()),
                Err(CallError::Failed(error)) => {
                    command_connection.lock().await.take();
                    return Ok(Err(error));
                }
                Err(CallError::NotTaken | CallError::Aborted) => {
                    command_connection.lock().await.take();
                    return Err(StoreError::connection("the connection was closed"));
                }
            }
        }
    };
    match timeout(within, run).await {
        Ok(ran) => ran,
        Err(_) => {
            if let Ok(mut open) = command_connection.try_lock() {
                open.take();
            }
            Err(StoreError::timeout())
        }
    }
}
