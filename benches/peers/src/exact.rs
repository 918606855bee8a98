//! How many concurrent requests each admits under a limit of 1,000, and how many keys it leaves that never expire.

use std::{future::Future, pin::Pin, sync::Arc};

use testkit::Server;
use tollgate_bench::{
    cases::{LIMIT, TASKS, TIMES, race},
    contenders::tollgate::{TollgateLimiter, on_redis},
    keys::{Callers, Rule},
    load::Contender,
    outcome::{Outcome, Row, Target, Unit},
};

use crate::peers::{self, Guest};

/// Each on a server of its own, so that what is left there is its own.
#[derive(Default)]
struct Races {
    servers: Vec<Server>,
    races: Vec<(&'static str, Race)>,
}

type Race = Pin<Box<dyn Future<Output = u64> + Send>>;

impl Guest for Races {
    fn take<C: Contender>(&mut self, name: &'static str, peer: C) {
        let race = Box::pin(race(Arc::new(peer), TASKS, TIMES));
        self.races.push((name, race));
    }

    fn url(&mut self) -> String {
        let server = Server::start();
        let url = server.url();
        self.servers.push(server);
        url
    }
}

pub(crate) async fn limit() -> Vec<Outcome> {
    let rule = Rule::at_once(LIMIT);
    let mut races = Races::default();
    let url = races.url();
    let ours = TollgateLimiter::one(on_redis(&url), rule, Callers::kept(1)).cached();
    races.take("tollgate", ours);
    peers::all(&mut races, rule, 1).await;
    let mut outcomes = Vec::new();
    for ((name, race), server) in races.races.into_iter().zip(races.servers) {
        let admitted = race.await;
        let (immortal, keys) = (server.immortal_keys().len(), server.keys().len());
        let title = format!("limit of {LIMIT}, {TASKS} tasks, {TIMES} requests each: {name}");
        let admitted = row("admitted".into(), admitted as f64, LIMIT as f64);
        let left = row(
            format!("keys without a TTL, of {keys}"),
            immortal as f64,
            0.0,
        );
        outcomes.push(Outcome::alone("exact", title, admitted).row(left));
    }
    outcomes
}

fn row(measure: String, value: f64, target: f64) -> Row {
    Row::number(measure, value, Unit::Count, Target::Exactly(target))
}
