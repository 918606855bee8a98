//! The example of a login.

use std::time::{Duration, Instant};

use testkit::Server;

use crate::examples::{
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
        // Guesses of the passwords of others use the address up, and in the end it is banned.
        let deadline = Instant::now() + Duration::from_secs(30);
        let mut others = 0;
        for policy in ["\"address\"", "\"abuse\""] {
            let mut rejected = HttpResponse::default();
            while rejected.status != 429 || !rejected.body.contains(policy) {
                assert!(Instant::now() < deadline, "{policy}: {rejected:?}");
                rejected = guess(login, &format!("user-{others}"));
                others += 1;
            }
        }
        assert_eq!(login.post("/login", RIGHT).status, 429, "banned");
    });
}

#[test]
fn login_does_not_lock_an_owner_out_whatever_others_guess() {
    each_store("login", &[("HASH_MS", "0")], |login| {
        let right = "user=bob&password=correct+horse";
        // One address, also in other letters.
        let names = ["bob", "Bob", "BOB", "bob", "bob", "bob", "bob"];
        let wrong: Vec<_> = names.map(|name| guess(login, name).status).into();
        assert_eq!(count(&wrong, 401), 5, "{wrong:?}");
        assert_eq!(login.post("/login", right).status, 429, "from there");
        let owner = [127, 0, 0, 2];
        assert_eq!(login.post_from(owner, "/login", right).body, "welcome\n");
        // Many addresses.
        for n in 0..100 {
            let wrong = "user=bob&password=guess";
            let guessed = login.post_from([127, 0, 1, n], "/login", wrong);
            assert_eq!(guessed.status, 401, "{n}: {guessed:?}");
        }
        let admitted = login.post_from(owner, "/login", right);
        assert_eq!(
            (admitted.status, &*admitted.body),
            (202, "right; now the second factor\n")
        );
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
        let page = || operators.get("/accounts/bob/127.0.0.1").body;
        assert_eq!(guess(login, "bob").status, 401);
        let stands = page();
        for line in ["pair: 4 left, Now", "account: 99 left, Now"] {
            assert!(stands.contains(line), "{stands}");
        }
        let act = |action: &str| operators.post(&format!("/accounts/bob/{action}"));
        assert_eq!(act("127.0.0.1/reset").body, "reset\n");
        let stands = page();
        for line in ["pair: 5 left", "address: 19 left", "account: 100 left"] {
            assert!(stands.contains(line), "{stands}");
        }
        assert_eq!(act("block").status, 200);
        let right = "user=bob&password=correct+horse";
        let blocked = login.post("/login", right);
        assert_eq!(blocked.status, 429, "{blocked:?}");
        assert!(blocked.body.contains("locked"), "{blocked:?}");
        assert_eq!(login.post("/login", RIGHT).status, 200, "another account");
        assert_eq!(act("127.0.0.1/reset").status, 200);
        assert_eq!(login.post("/login", right).status, 429, "still blocked");
        assert_eq!(act("unblock").body, "unblocked\n");
        assert_eq!(login.post("/login", right).status, 200);
    });
}
