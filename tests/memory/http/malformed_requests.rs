//! Malformed heads, keys and configuration: each gets a response, or an error that names the mistake. The fuzz targets
//! in `fuzz/` check the same.

use proptest::{prelude::*, sample::select};

use crate::http::{
    inputs::{
        a_name_is_shown_or_rejected, a_network_is_plain, a_rejection_is_complete,
        configuration_is_accepted_or_rejected, keys_differ_where_text_does,
    },
    support::*,
};

const HEADERS: &[&str] = &["accept", "content-type", "origin", "cookie", "host"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_request_head_makes_a_rejection_malformed(
        uri in "/?[a-z/.%]{0,12}(\\?[a-z=&%0-9+]{0,12})?",
        lines in prop::collection::vec(
            (
                select(HEADERS),
                "((text|application|\\*)/(html|json|grpc|\\*|problem\\+json|grpc-web)(;q=[0-9.eE+-]{0,5})?[,; ]{0,2}){0,4}|\\PC{0,20}",
            ),
            0..5,
        ),
    ) {
        let lines = lines.into_iter().filter_map(|(name, value)| {
            let value = HeaderValue::from_bytes(value.as_bytes()).ok()?;
            Some((HeaderName::from_static(name), value))
        });
        a_rejection_is_complete(&uri, &lines.collect::<Vec<_>>());
    }

    #[test]
    fn no_text_makes_the_key_of_another_text(
        texts in prop::collection::vec("[a-c+#:*?~]{0,3}|\\PC{0,30}|[0a]{8}-([0a]{4}-){3}[0a]{12}", 0..5),
        address in any::<std::net::IpAddr>(),
        bits in any::<u8>(),
    ) {
        let texts: Vec<_> = texts.iter().map(String::as_bytes).collect();
        keys_differ_where_text_does(&texts);
        a_network_is_plain(address, bits);
    }

    #[test]
    fn configuration_is_accepted_or_rejected_with_an_error(
        text in "(rediss?|unix|valkey)?(://)?[a-z0-9:@/?=&%.\\[\\],#-]{0,30}|[0-9a-f.:/, *]{0,40}|\\PC{0,70}",
    ) {
        a_name_is_shown_or_rejected(&text);
        configuration_is_accepted_or_rejected(&text);
        crate::http::redis_inputs::a_store_is_accepted_or_rejected(&text);
    }
}
