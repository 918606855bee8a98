//! What must hold of heads, keys and configuration, whatever they are. Property tests and fuzz targets share it, so it
//! depends on neither.

use std::{
    collections::HashMap,
    convert::Infallible,
    net::IpAddr,
    pin::pin,
    sync::{Arc, LazyLock},
    task::{Context, Poll, Waker},
};

use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode, Uri};
use tollgate::{
    Key, KeyExtractor, Limiter, Policy, Quota, RateLimitLayer, access::AddressList, extract,
};
use tower::{Layer, ServiceExt, service_fn};

/// A rejected request gets a complete response, whatever was requested.
pub(crate) fn a_rejection_is_complete(uri: &str, lines: &[(HeaderName, HeaderValue)]) {
    // No request gets past it.
    static CLOSED: LazyLock<RateLimitLayer> = LazyLock::new(|| {
        let policy = Policy::new("p", Quota::requests(1).per_day()).cost_with(|_| 2);
        let layer = RateLimitLayer::builder().policy(policy.key(extract::global()));
        layer.build().expect("a layer")
    });
    let mut request = Request::new(());
    *request.uri_mut() = uri.parse::<Uri>().unwrap_or_default();
    for (name, value) in lines {
        request.headers_mut().append(name.clone(), value.clone());
    }
    let sent = request.headers().clone();
    let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
    let Ok(response) = now(CLOSED.layer(inner).oneshot(request));
    let (status, fields) = (response.status(), response.headers());
    let grpc = fields.get("grpc-status").map(HeaderValue::as_bytes);
    assert!(
        status == StatusCode::TOO_MANY_REQUESTS || (status == StatusCode::OK && grpc == Some(b"8")),
        "{status}, {fields:?} to {sent:?}"
    );
    assert!(fields.contains_key("content-type"), "{fields:?}");
}

/// Different text is different keys, alone and in tuples, and nothing in a key quotes, ends or steers anything.
pub(crate) fn keys_differ_where_text_does(texts: &[&[u8]]) {
    let mut seen = HashMap::new();
    for text in texts {
        let key = Key::new(text);
        assert_plain(&key);
        assert_plain(&Key::secret(text));
        assert_ne!(key, Key::secret(text), "{text:?}");
        assert_no_text_makes(&Key::secret(text));
        assert_eq!(*seen.entry(key).or_insert(text), text, "{key}");
        // No text passes for what isn't made of text.
        assert!(key != Key::global() && key != Key::missing(), "{text:?}");
    }
    let whole = Key::tuple(texts.iter().map(Key::new));
    assert_plain(&whole);
    assert_no_text_makes(&whole);
    let joint = Key::new(texts.concat());
    assert_ne!(whole, joint, "{texts:?}");
    for at in 1..texts.len() {
        // The same parts in other groups.
        let (head, tail) = texts.split_at(at);
        let grouped = [head, tail].map(|part| Key::tuple(part.iter().map(Key::new)));
        assert_ne!(Key::tuple(grouped), whole, "{texts:?} at {at}");
        assert_ne!(Key::tuple(head.iter().map(Key::new)), whole);
    }
}

/// A network's key is readable or a hash, and is the same for all of its addresses.
pub(crate) fn a_network_is_plain(address: IpAddr, bits: u8) {
    let key = Key::network(address, bits, bits);
    assert_plain(&key);
    assert_eq!(key, Key::network(address.to_canonical(), bits, bits));
    assert_plain(&Key::ip(address));
}

/// No client that has read a key makes the same key by sending it.
fn assert_no_text_makes(key: &Key) {
    assert_ne!(Key::new(key.as_str()), *key);
}

fn assert_plain(key: &Key) {
    let text = key.as_str();
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-@:/#+*?~".contains(&byte);
    assert!(
        (1..=23).contains(&text.len()) && text.bytes().all(plain),
        "{text:?}"
    );
}

/// A policy's name is one that every reader of our fields reads as it is, or an error.
pub(crate) fn a_name_is_shown_or_rejected(name: &str) {
    let policy = Policy::new(name, Quota::requests(5).per_hour()).key(extract::global());
    let layer = match RateLimitLayer::builder().policy(policy).build() {
        Ok(layer) => layer,
        Err(error) => return assert!(!error.expected().is_empty(), "{name:?}"),
    };
    let inner = service_fn(async |_| Ok::<_, Infallible>(Response::new(String::new())));
    let Ok(response) = now(layer.layer(inner).oneshot(Request::new(())));
    for field in ["ratelimit", "ratelimit-policy"] {
        let shown = names_in(response.headers(), field);
        assert_eq!(shown, [name], "{field}");
    }
}

fn names_in(fields: &HeaderMap, field: &str) -> Vec<String> {
    let list: sfv::List = sfv::Parser::new(fields[field].as_bytes())
        .parse()
        .expect("a list");
    let items = list.into_iter().map(|entry| match entry {
        sfv::ListEntry::Item(item) => item.bare_item.as_string().expect("a string").to_string(),
        sfv::ListEntry::InnerList(inner) => panic!("{inner:?}"),
    });
    items.collect()
}

/// Nothing that may be configured fails otherwise than by saying what is wrong.
pub(crate) fn configuration_is_accepted_or_rejected(text: &str) {
    let addresses = text.split([',', '\n']);
    if let Err(error) = AddressList::new(addresses.clone()) {
        assert!(!error.expected().is_empty(), "{text:?}");
    }
    let trusting = extract::client_ip().trusted_proxies(["10.0.0.0/8"]);
    let extractors: [Arc<dyn KeyExtractor>; 5] = [
        Arc::new(extract::header(text)),
        Arc::new(extract::cookie(text)),
        Arc::new(extract::query(text)),
        Arc::new(extract::client_ip().trusted_proxies(addresses)),
        Arc::new(trusting.header(text)),
    ];
    for extractor in extractors {
        let policy = Policy::new("p", Quota::requests(1).per_day()).key(extractor);
        if let Err(error) = Limiter::builder().policy(policy).skip_path(text).build() {
            assert!(!error.expected().is_empty(), "{text:?}");
        }
    }
}

fn now<F: Future>(future: F) -> F::Output {
    let mut context = Context::from_waker(Waker::noop());
    match pin!(future).poll(&mut context) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("nothing here waits"),
    }
}
