use super::{Record, parse};
use crate::replay::request::Entry;

/// 2027-01-15 08:00 UTC.
const TIME_US: i64 = 1_800_000_000_000_000;

/// Asserts that a line is a request for `/a?b=c` at [`TIME_US`] with these headers.
#[track_caller]
fn assert_record(record: Record, headers: &[(&str, &str)]) {
    assert_eq!(record.arrived_us, TIME_US);
    let parts = (&*record.method, &*record.target, record.status);
    assert_eq!(parts, ("GET", "/a?b=c", 200));
    assert_eq!(record.headers.len(), headers.len());
    for ((found, value), (name, expected)) in record.headers.iter().zip(headers) {
        assert!(found.eq_ignore_ascii_case(name), "{found}");
        assert_eq!(value, expected);
    }
    assert!(Entry::new(record).is_ok());
}

#[test]
fn lines_of_apache_and_nginx_are_read() {
    let agent = ("user-agent", "curl/8 \"x\"");
    let referer = ("referer", "https://example.com/");
    let forwarded = ("x-forwarded-for", "203.0.113.7, 10.0.0.1");
    for (line, peer, headers) in [
        // common
        (
            r#"192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 123"#,
            Some("192.0.2.1"),
            &[][..],
        ),
        // combined, elsewhere, with escapes of both servers
        (
            r#"2001:db8::7 - frank smith [15/Jan/2027:10:00:00 +0200] "GET /a?b=c HTTP/1.1" 200 - "https://example.com/" "curl/8 \"x\"""#,
            Some("2001:db8::7"),
            &[referer, agent],
        ),
        (
            r#"192.0.2.1 - [odd [15/Jan/2027:05:30:00 -0230] "GET /a?b=c HTTP/2.0" 200 123 "-" "curl/8 \x22x\x22""#,
            Some("192.0.2.1"),
            &[agent],
        ),
        // with a byte order mark and a virtual host, and with a name in place of an address
        (
            "\u{feff}example.com:443 192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] \"GET /a?b=c HTTP/1.1\" 200 123 \"-\" \"-\"",
            Some("192.0.2.1"),
            &[],
        ),
        (
            r#"crawler.example.com - - [15/Jan/2027:08:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 123 "-" "-""#,
            None,
            &[],
        ),
        // nginx's `main`, and with more after it
        (
            r#"192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 123 "-" "-" "203.0.113.7, 10.0.0.1" 0.001 "x""#,
            Some("192.0.2.1"),
            &[forwarded],
        ),
        (
            r#"192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 123 "-" "-" "other""#,
            Some("192.0.2.1"),
            &[],
        ),
    ] {
        let record = parse(line, &[]).unwrap_or_else(|reason| panic!("{line}: {reason}"));
        let address = record.peer.map(|peer| peer.to_string());
        assert_eq!(address.as_deref(), peer, "{line}");
        assert_record(record, headers);
    }
    let no_date = r#"192.0.2.1 - - [29/Feb/2027:08:00:00 +0000] "GET / HTTP/1.1" 200 1"#;
    assert!(parse(no_date, &[]).is_err());
}

#[test]
fn lines_of_caddy_traefik_and_nginx_in_json_are_read() {
    for (line, headers) in [
        (
            r#"{"ts":1800000000.25,"request":{"remote_ip":"192.0.2.1","remote_port":"4321","client_ip":"10.1.1.1","method":"GET","host":"example.com","uri":"/a?b=c","headers":{"User-Agent":["curl/8"],"X-Many":["1","2"]}},"duration":0.25,"status":200}"#,
            &[("user-agent", "curl/8"), ("x-many", "1"), ("x-many", "2")][..],
        ),
        (
            r#"{"ClientAddr":"192.0.2.1:4321","ClientHost":"192.0.2.1","ClientPort":"4321","DownstreamStatus":200,"Duration":250000000,"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","StartLocal":"2027-01-15T10:00:00+02:00","StartUTC":"2027-01-15T08:00:00Z","request_User-Agent":"curl/8","request_X-Empty":"","time":"2027-01-15T08:00:07Z"}"#,
            &[("user-agent", "curl/8")],
        ),
        (
            r#"{"msec":"1800000000.250","remote_addr":"192.0.2.1","request":"GET /a?b=c HTTP/1.1","status":"200","request_time":"0.250","http_user_agent":"curl/8","http_x_forwarded_for":"-","server_name":"example.com"}"#,
            &[("user-agent", "curl/8")],
        ),
        (
            r#"{"@timestamp":"2027-01-15T08:00:00.250+0000","client":"192.0.2.1:4321","method":"GET","url":"/a?b=c","host":"example.com","status":200,"duration":"250ms"}"#,
            &[],
        ),
    ] {
        let record = parse(line, &[]).unwrap_or_else(|reason| panic!("{line}: {reason}"));
        assert_eq!(record.host.as_deref(), Some("example.com"));
        assert_eq!(record.duration_us, 250_000, "{line}");
        let peer = record.peer.map(|peer| peer.to_string());
        assert_eq!(peer.as_deref(), Some("192.0.2.1"), "{line}");
        assert_record(record, headers);
    }
}

#[test]
fn fields_may_have_other_names() {
    let options = [
        "start=when.at",
        "peer=from",
        "status=code",
        "duration_ms=took",
        "header:X-Api-Key=key",
    ]
    .map(|option| option.parse().expect("an option"));
    let line = r#"{"when":{"at":1800000000000},"from":"192.0.2.1","code":200,"took":2,"key":"k1","method":"GET","path":"/a?b=c","time":0}"#;
    let record = parse(line, &options).expect("a request");
    assert_eq!(record.duration_us, 2_000);
    assert_record(record, &[("x-api-key", "k1")]);
    for mistake in ["time", "when=ts", "header:a b=c"] {
        assert!(mistake.parse::<super::FieldOption>().is_err(), "{mistake}");
    }
}
