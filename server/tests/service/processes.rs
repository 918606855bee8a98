//! Several servers, and the end of one.

use std::time::Duration;

use futures_util::future::{join_all, select};
use tollgate_server::{rules::Unit, serve::Server};
use tonic::{Code, Status, transport::Endpoint};
use tonic_health::pb::{
    HealthCheckRequest, health_check_response::ServingStatus, health_client::HealthClient,
};

use crate::{
    client::{Client, cost, descriptor, is_over, request},
    json::{get, get_at},
    scene::{limit, limit_together, options, redis, rules, served_with, server},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_servers_on_one_redis_admit_exactly_the_limit() {
    let (_clock, redis) = redis();
    let rules = rules([
        limit("user", "", 500, Unit::Hour),
        limit_together("tenant", "", 300, Unit::Hour),
        limit_together("model", "", 700, Unit::Hour),
    ]);
    let servers = [
        server(&redis, &rules, &[]).await,
        server(&redis, &rules, &[]).await,
    ];
    let clients = servers.each_ref().map(Client::of);
    let ask = |index: usize| {
        let client = clients[index % 2].clone();
        tokio::spawn(async move {
            let (mut users, mut both) = (0, 0);
            for _ in 0..50 {
                users += u32::from(client.passes(descriptor([("user", "a")])).await);
                let pair = [descriptor([("tenant", "a")]), descriptor([("model", "m")])];
                both += u32::from(!is_over(&client.ask(pair).await));
            }
            (users, both)
        })
    };
    let (mut users, mut both) = (0, 0);
    for admitted in join_all((0..16).map(ask)).await {
        let (of_users, of_both) = admitted.expect("a task");
        (users, both) = (users + of_users, both + of_both);
    }
    assert_eq!((users, both), (500, 300));
    for client in &clients {
        assert_eq!(client.left(descriptor([("user", "a")])).await, 0);
        assert_eq!(client.left(descriptor([("tenant", "a")])).await, 0);
        // Those that the other limit refused are not charged.
        assert_eq!(client.left(descriptor([("model", "m")])).await, 400);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ends_is_reported_as_not_serving_and_answers_what_it_has() {
    let (_clock, redis) = redis();
    let flags = ["--drain-delay", "3600", "--drain-timeout", "3600"];
    let server = server(&redis, &rules([limit("user", "", 9, Unit::Hour)]), &flags).await;
    let (client, http) = (Client::of(&server), server.http());
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("a URL");
    let mut health = HealthClient::new(channel.connect_lazy());
    let status = async |health: &mut HealthClient<_>, service: &str| {
        let service = service.to_owned();
        let response = health
            .check(HealthCheckRequest { service })
            .await
            .expect("a response");
        response.into_inner().status()
    };
    let services = [
        "",
        "ratelimit",
        "envoy.service.ratelimit.v3.RateLimitService",
    ];
    for service in services {
        assert_eq!(status(&mut health, service).await, ServingStatus::Serving);
    }
    assert_eq!(get(&server, "/healthcheck").await.0, 200);
    let stopping = tokio::spawn(server.stop());
    while status(&mut health, "").await == ServingStatus::Serving {
        tokio::task::yield_now().await;
    }
    let stopped = get_at(http, "/healthcheck").await;
    assert_eq!(stopped, (500, "NOT SERVING".to_owned()));
    // Until the delay has passed it answers.
    assert!(client.passes(descriptor([("user", "a")])).await);
    stopping.abort();
}

#[tokio::test]
async fn a_health_watch_outlives_the_bounds_of_requests_and_the_age_of_its_connection() {
    let flags = ["--max-connection-age", "30"];
    let server = Server::start(&options(&flags), &rules([])).await;
    let server = server.expect("a server");
    let channel = Endpoint::from_shared(format!("http://{}", server.grpc())).expect("a URL");
    let mut health = HealthClient::new(channel.connect_lazy());
    let watched = health.watch(HealthCheckRequest::default()).await;
    let mut statuses = watched.expect("a watch").into_inner();
    let mut next = async || {
        let status = statuses.message().await.expect("a connection");
        status.expect("a status").status()
    };
    assert_eq!(next().await, ServingStatus::Serving);
    // The clock jumps to the next timer while nothing else is to be done, but not to the first PING, which the client could not answer.
    tokio::time::pause();
    tokio::time::sleep(Duration::from_secs(50)).await;
    tokio::time::resume();
    let stopping = tokio::spawn(server.stop());
    assert_eq!(next().await, ServingStatus::NotServing);
    stopping.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_in_flight_are_answered_before_the_server_ends() {
    let flags = ["--max-requests", "1", "--drain-timeout", "3600"];
    let client = served_with(&flags, rules([limit("user", "", 9, Unit::Hour)])).await;
    let address = format!("http://{}", client.server.grpc());
    assert!(client.passes(descriptor([("user", "a")])).await);
    client.redis.pause();
    let ask = || {
        // A connection of its own: each has one request in flight.
        let client = Client::of(&client.server);
        let request = request([cost(descriptor([("user", "a")]), 2)]);
        tokio::spawn(async move { client.send(request).await })
    };
    let is_refused = |sent: Result<_, Status>| {
        sent.is_err_and(|status| status.code() == Code::ResourceExhausted)
    };
    // One is refused once the other is in flight.
    let (refused, waiting) = select(ask(), ask()).await.factor_first();
    assert!(is_refused(refused.expect("a task")));
    let stopping = tokio::spawn(client.server.stop());
    // No port answers any more.
    while is_refused(Client::to(&address).send(request([])).await) {
        tokio::task::yield_now().await;
    }
    assert!(!stopping.is_finished());
    client.redis.resume();
    let response = waiting.await.expect("a task").expect("a response");
    assert_eq!(response.statuses[0].limit_remaining, 6);
    stopping.await.expect("a task").expect("an end");
}
