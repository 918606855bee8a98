//! Sends rate limit requests to a running server, and prints how many are decided, how long they take, and the CPU time of each
//! process that is named: the server, Redis, and this program itself.
//!
//! ```text
//! cargo run --release -p tollgate-server --example load -- http://127.0.0.1:8081 \
//!     --pids $(pgrep -d, 'tollgate-server|redis-server')
//! ```

use std::{error::Error, fs, process, time::Duration};

use clap::Parser;
use http::uri::PathAndQuery;
use tokio::{
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval_at},
};
use tollgate_server::proto::{
    self, Entry, RateLimitDescriptor, RateLimitRequest, RateLimitResponse,
};
use tonic::{
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

#[derive(Clone, Debug, Parser)]
struct Options {
    /// The server.
    url: String,
    /// Requests in flight.
    #[arg(long, default_value_t = 64)]
    in_flight: u32,
    /// HTTP/2 connections.
    #[arg(long, default_value_t = 2)]
    connections: u32,
    /// Requests per second of all; 0: as many as are answered.
    #[arg(long, default_value_t = 0)]
    rate: u32,
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    #[arg(long, default_value = "example")]
    domain: String,
    /// The key of the descriptor's entry.
    #[arg(long, default_value = "user")]
    key: String,
    /// Different values of the entry.
    #[arg(long, default_value_t = 1_000)]
    values: u32,
    /// Processes whose CPU time is printed.
    #[arg(long, value_delimiter = ',')]
    pids: Vec<u32>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let options = Options::parse();
    let mut channels = Vec::new();
    for _ in 0..options.connections {
        let endpoint = Endpoint::from_shared(options.url.clone())?.tcp_nodelay(true);
        channels.push(endpoint.connect().await?);
    }
    let pids: Vec<u32> = [&options.pids[..], &[process::id()]].concat();
    let before: Vec<_> = pids.iter().map(|pid| cpu_time(*pid)).collect();
    let (begun, mut tasks) = (Instant::now(), JoinSet::new());
    for task in 0..options.in_flight {
        let channel = channels[task as usize % channels.len()].clone();
        tasks.spawn(send(options.clone(), task, channel));
    }
    let (mut times, mut failed, mut over) = (Vec::new(), 0, 0);
    while let Some(sent) = tasks.join_next().await {
        let sent = sent?;
        times.extend(sent.times);
        (failed, over) = (failed + sent.failed, over + sent.over);
    }
    let elapsed = begun.elapsed();
    times.sort_unstable();
    let count = times.len().max(1);
    let at = |share: f64| {
        times
            .get((count as f64 * share) as usize)
            .copied()
            .unwrap_or_default()
    };
    println!(
        "{:.0} decisions a second, {over} over the limit, {failed} failed; p50 {:?}, p99 {:?}, p99.9 {:?}, longest {:?}",
        count as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        times.last().copied().unwrap_or_default(),
    );
    for (pid, before) in pids.iter().zip(before) {
        let used = cpu_time(*pid).saturating_sub(before);
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        println!(
            "{} ({pid}): {:.1} us of CPU a decision, {} kB resident",
            name.trim(),
            used.as_micros() as f64 / count as f64,
            resident_kb(*pid),
        );
    }
    Ok(())
}

/// What one task has sent.
#[derive(Default)]
struct Sent {
    times: Vec<Duration>,
    failed: u64,
    over: u64,
}

async fn send(options: Options, task: u32, channel: Channel) -> Sent {
    let mut sent = Sent::default();
    let end = Instant::now() + Duration::from_secs(options.seconds);
    let mut ticks = (options.rate > 0).then(|| {
        // One task after the other.
        let every = Duration::from_secs(1) / options.rate;
        let mut ticks = interval_at(Instant::now() + every * task, every * options.in_flight);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        ticks
    });
    let mut value = task;
    while Instant::now() < end {
        if let Some(ticks) = &mut ticks {
            ticks.tick().await;
        }
        value = (value + 7919) % options.values;
        let entry = Entry {
            key: options.key.clone(),
            value: value.to_string().into_bytes(),
        };
        let request = RateLimitRequest {
            domain: options.domain.clone(),
            descriptors: vec![RateLimitDescriptor {
                entries: vec![entry],
                ..RateLimitDescriptor::default()
            }],
            hits_addend: 0,
        };
        let begun = Instant::now();
        match ask(&channel, request).await {
            Ok(response) => {
                sent.times.push(begun.elapsed());
                sent.over += u64::from(response.overall_code == i32::from(proto::Code::OverLimit));
            }
            Err(_) => sent.failed += 1,
        }
    }
    sent
}

async fn ask(
    channel: &Channel,
    request: RateLimitRequest,
) -> Result<RateLimitResponse, Box<dyn Error + Send + Sync>> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await?;
    let path = PathAndQuery::from_static(proto::SHOULD_RATE_LIMIT);
    let codec = ProstCodec::<RateLimitRequest, RateLimitResponse>::default();
    let response = grpc
        .unary(tonic::Request::new(request), path, codec)
        .await?;
    Ok(response.into_inner())
}

/// User and system time of a process, from `/proc`, in the kernel's ticks of 10 ms.
fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    let ticks = after_name.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|ticks| ticks.parse::<u64>().ok()).sum();
    Duration::from_millis(10 * ticks)
}

fn resident_kb(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok());
    number.unwrap_or_default()
}
