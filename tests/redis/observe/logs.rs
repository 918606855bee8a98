//! The event that is logged for each rejection.

use tollgate_tests::prelude::*;
use tracing::Level;

use crate::observe::support::*;

const MESSAGE: &str = "a request was rejected";

#[tokio::test]
async fn each_rejection_is_logged_once_and_no_admission() {
    let log = Log::default();
    let _guard = log.at(Level::DEBUG);
    let limiter = stores::limiter(Limiter::builder(), [limit("p", "2/month")]);
    for _ in 0..2 {
        assert!(limiter.check(KEY).await.is_admitted());
    }
    assert_eq!(log.text(), "");
    for _ in 0..3 {
        assert!(!limiter.check(KEY).await.is_admitted());
    }
    assert!(limiter.wait(KEY, Duration::ZERO).await.is_err());
    // Not a request.
    assert!(limiter.peek(KEY).await.is_ok());
    assert!(!limiter.check(("unknown", KEY)).await.is_admitted());
    let lines = log.lines(MESSAGE);
    assert_eq!(lines.len(), 5, "{lines:?}");
    let [rejected, .., invalid] = &lines[..] else {
        panic!("{lines:?}");
    };
    let fields = r#"outcome="rejected" policy="p" key=* retry_after="#;
    assert!(rejected.contains(fields), "{rejected}");
    assert!(invalid.contains(r#"outcome="invalid""#) && !invalid.contains("policy="));
    let secret = limit("s", "1/month").key(extract::path());
    let secret = stores::limiter(Limiter::builder(), [secret]);
    let key = Key::secret("sk_live_abc");
    for _ in 0..2 {
        let _ = secret.check(key).await;
    }
    let text = log.text();
    // As the admin API and lists take it.
    let shown = format!("key=hash:{} ", key.as_str().trim_start_matches('#'));
    assert!(text.contains(&shown), "{text}");
    assert!(!text.contains("sk_live"));
}
