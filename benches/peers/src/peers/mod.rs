//! The peers on Redis, each called the way its documentation shows.

#[cfg(feature = "limitador")]
mod limitador;
pub(crate) mod throttle_kit;
pub(crate) mod tower_rate_limit_redis;
pub(crate) mod trypema;

use tollgate_bench::{keys::Rule, load::Contender, runner::Entrant};

/// What is done with each of them.
pub(crate) trait Guest {
    /// Takes a peer in.
    fn take<C: Contender>(&mut self, name: &'static str, peer: C);

    /// The server that the next one counts on.
    fn url(&mut self) -> String;
}

/// Shows all peers to `guest`.
pub(crate) async fn all(guest: &mut impl Guest, rule: Rule, keys: usize) {
    let url = guest.url();
    let peer = tower_rate_limit_redis::Peer::open(&url, rule, keys).await;
    guest.take("tower-rate-limit-redis", peer);
    let url = guest.url();
    let peer = throttle_kit::Peer::open(&url, rule, keys).await;
    guest.take("throttle-kit", peer);
    let url = guest.url();
    let peer = trypema::Peer::open(&url, rule, keys).await;
    guest.take("trypema", peer);
    #[cfg(feature = "limitador")]
    {
        let url = guest.url();
        let peer = limitador::Peer::open(&url, rule, keys).await;
        guest.take("limitador", peer);
    }
}

/// Takes turns with the others, on one server.
pub(crate) struct Turns<'a> {
    pub(crate) url: &'a str,
    pub(crate) entrants: &'a mut Vec<Entrant>,
}

impl Guest for Turns<'_> {
    fn take<C: Contender>(&mut self, name: &'static str, peer: C) {
        self.entrants.push(Entrant::new(name, peer));
    }

    fn url(&mut self) -> String {
        self.url.to_owned()
    }
}
