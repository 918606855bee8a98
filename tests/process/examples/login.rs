//! The example of a login.

use tollgate_tests::{
    example::{Example, HttpResponse, Stage, ask},
    prelude::*,
};

use crate::examples::DOWN;

const RIGHT: &str = "user=alice&password=correct+horse";

fn guess(login: &Example, user: &str) -> HttpResponse {
    login.post("/login", &format!("user={user}&password=guess"))
}

fn statuses(n: usize, attempt: impl Fn(usize) -> HttpResponse) -> Vec<u16> {
    (0..n).map(|n| attempt(n).status).collect()
}

#[test]
fn login_counts_failures_alone() {
    for stage in Stage::both() {
        let login = stage.start("login", &[]);
        let right = statuses(30, |_| login.post("/login", RIGHT));
        assert_eq!(right, [200; 30]);
        // One account, also in other letters.
        let names = ["bob", "Bob", "BOB"];
        let wrong = statuses(8, |n| guess(&login, names[n % 3]));
        assert_eq!(wrong, [401, 401, 401, 401, 401, 429, 429, 429]);
        // Guesses of the passwords of others use the address up, and in the end it is banned.
        let others = statuses(15, |n| guess(&login, &format!("user-{n}")));
        assert_eq!(others, [401; 15]);
        let rejected = guess(&login, "user-15");
        assert!(rejected.body.contains("\"address\""), "{rejected:?}");
        let rejected = statuses(30, |n| guess(&login, &format!("user-{n}")));
        assert_eq!(rejected, [429; 30]);
        let banned = login.post("/login", RIGHT);
        assert_eq!(banned.status, 429);
        assert!(banned.body.contains("\"abuse\""), "{banned:?}");
    }
}

/// Sends `n` attempts at once; returns how many got this status.
fn at_once(n: usize, status: u16, attempt: impl Fn() -> HttpResponse + Sync) -> usize {
    thread::scope(|scope| {
        let sent: Vec<_> = (0..n).map(|_| scope.spawn(&attempt)).collect();
        let responses = sent
            .into_iter()
            .map(|sent| sent.join().expect("a response"));
        responses
            .filter(|response| response.status == status)
            .count()
    })
}

#[test]
fn login_rejects_no_right_password_however_many_are_being_checked() {
    // However slow the machine is, no login waits for its turn in vain.
    let login = Stage::in_process().start_with(Timers::Real, "login", &[("TURN", "3600")]);
    assert_eq!(at_once(12, 200, || login.post("/login", RIGHT)), 12);
    // And guesses that come together are no more than the account's failures, and the four that were checked beside the last.
    // None waits for the next minute.
    let login = Stage::in_process().start("login", &[("TURN", "0")]);
    let guesses = at_once(16, 401, || guess(&login, "bob"));
    assert!((5..=9).contains(&guesses), "{guesses}");
}

#[test]
fn login_rejects_every_attempt_while_redis_is_down() {
    let login = Example::start("login", &[DOWN]);
    for form in [RIGHT, "user=bob&password=guess"] {
        for _ in 0..12 {
            let response = login.post("/login", form);
            assert_eq!(response.status, 503, "{response:?}");
            assert!(response.field("retry-after").is_some(), "{response:?}");
        }
    }
}

#[test]
fn login_lets_operators_inspect_block_and_unblock_an_account() {
    let stage = Stage::on_redis();
    let login = stage.start("login", &[]);
    let output = login.output_until("Operators on http://");
    let (_, operators) = output.split_once("Operators on http://").expect("a line");
    let operators = operators.lines().next().expect("an address");
    let operators = operators.parse().expect("an address and a port");
    let call = |method, path| ask(operators, method, &format!("/accounts/bob/{path}"), &[], "");
    let page = || call("GET", "127.0.0.1").body;
    assert_eq!(guess(&login, "bob").status, 401);
    let stands = page();
    for line in ["pair: 4 left, Now", "account: 99 left, Now"] {
        assert!(stands.contains(line), "{stands}");
    }
    assert_eq!(call("POST", "127.0.0.1/reset").body, "reset\n");
    let stands = page();
    for line in ["pair: 5 left", "address: 19 left", "account: 100 left"] {
        assert!(stands.contains(line), "{stands}");
    }
    let right = || login.post("/login", "user=bob&password=correct+horse");
    assert_eq!(call("POST", "block").status, 200);
    let blocked = right();
    assert_eq!(blocked.status, 429, "{blocked:?}");
    assert!(blocked.body.contains("locked"), "{blocked:?}");
    assert_eq!(login.post("/login", RIGHT).status, 200, "another account");
    assert_eq!(call("POST", "127.0.0.1/reset").status, 200);
    assert_eq!(right().status, 429, "still blocked");
    assert_eq!(call("POST", "unblock").body, "unblocked\n");
    assert_eq!(right().status, 200);
}
