//! The example of a login.

use std::time::{Duration, Instant};

use testkit::Server;

use crate::{
    charging::{at_once, count, each_store},
    process::{Example, HttpResponse},
};

const RIGHT: &str = "user=alice&password=correct+horse";

fn guess(login: &Example, user: &str) -> HttpResponse {
    login.post("/login", &format!("user={user}&password=guess"))
}

#[test]
fn login_counts_failures_alone() {
    each_store("login", &[], |login| {
        for _ in 0..30 {
            assert_eq!(login.post("/login", RIGHT).status, 200);
        }
        let wrong: Vec<_> = (0..8).map(|_| guess(login, "bob").status).collect();
        assert_eq!(count(&wrong, 401), 5, "{wrong:?}");
        assert_eq!(count(&wrong, 429), 3, "{wrong:?}");
        // The account's rejections are failures of the address too: its 20 are used up, and in the end it is banned.
        let deadline = Instant::now() + Duration::from_secs(30);
        for policy in ["\"address\"", "\"abuse\""] {
            let mut rejected = HttpResponse::default();
            while rejected.status != 429 || !rejected.body.contains(policy) {
                assert!(Instant::now() < deadline, "{policy}: {rejected:?}");
                rejected = guess(login, "carol");
            }
        }
        assert_eq!(login.post("/login", RIGHT).status, 429, "banned");
    });
}

#[test]
fn login_rejects_no_right_password_however_many_are_being_checked() {
    each_store("login", &[("HASH_MS", "200")], |login| {
        let responses = at_once(12, |_| login.post("/login", RIGHT));
        assert_eq!(count(&responses, 200), 12, "{responses:?}");
        // And guesses that come together are no more than the account's failures, and the four that were checked beside the last.
        let responses = at_once(16, |_| guess(login, "bob"));
        let guesses = count(&responses, 401);
        assert!((5..=9).contains(&guesses), "{responses:?}");
    });
}

#[test]
fn login_rejects_every_attempt_while_redis_is_down() {
    let server = Server::start();
    let login = Example::start("login", &[("REDIS_URL", &server.url())]);
    assert_eq!(login.post("/login", RIGHT).status, 200);
    server.kill();
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
    each_store("login", &[], |login| {
        let operators = login.output_until("Operators on http://");
        let (_, address) = operators
            .split_once("Operators on http://")
            .expect("a line");
        let operators = login.at(address.lines().next().expect("an address"));
        let page = |account: &str| operators.get(&format!("/accounts/{account}")).body;
        assert_eq!(guess(login, "bob").status, 401);
        let stands = page("bob");
        assert!(stands.contains("would be admitted: true"), "{stands}");
        assert!(stands.contains("account: 4 of 5 left, Now"), "{stands}");
        let act = |action: &str| operators.post(&format!("/accounts/bob/{action}"));
        assert_eq!(act("reset").body, "reset; 4 failures were left\n");
        assert!(page("bob").contains("account: 5 of 5 left"));
        assert_eq!(act("block").status, 200);
        let stands = page("bob");
        assert!(stands.contains("would be admitted: false"), "{stands}");
        let right = "user=bob&password=correct+horse";
        let blocked = login.post("/login", right);
        assert_eq!(blocked.status, 429, "{blocked:?}");
        assert!(blocked.body.contains("locked"), "{blocked:?}");
        assert_eq!(login.post("/login", RIGHT).status, 200, "another account");
        assert_eq!(act("reset").status, 200);
        assert_eq!(login.post("/login", right).status, 429, "still blocked");
        assert_eq!(act("unblock").body, "unblocked\n");
        assert_eq!(login.post("/login", right).status, 200);
    });
}
