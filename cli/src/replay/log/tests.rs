use super::{FieldNames, LoggedTime, Record, instant, parse};
use crate::replay::request::{Entry, Place};

/// 2027-01-15 08:00 UTC.
const TIME: i64 = 1_800_000_000_000_000;

const PLACE: Place = Place { log: 0, line: 1 };

fn names() -> FieldNames {
    FieldNames::new(&[], None)
}

fn headers(record: &Record<'_>) -> Vec<(String, String)> {
    let headers = record.headers.iter();
    headers
        .map(|(name, value)| (name.to_ascii_lowercase(), value.to_string()))
        .collect()
}

fn text(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    let pairs = pairs.iter();
    pairs
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

#[test]
fn lines_of_apache_and_nginx_are_read() {
    let whole = LoggedTime {
        micros: TIME,
        is_whole_second: true,
        is_arrival: false,
    };
    let agent = ("user-agent", "curl/8 \"x\"");
    let referer = ("referer", "https://example.com/");
    let forwarded = ("x-forwarded-for", "203.0.113.7, 10.0.0.1");
    for (line, peer, expected) in [
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
        // with a virtual host, and with a name in place of an address
        (
            r#"example.com:443 192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 123 "-" "-""#,
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
        let record = parse(line, &names()).unwrap_or_else(|reason| panic!("{line}: {reason}"));
        assert_eq!(record.time, whole, "{line}");
        let parts = (&*record.method, &*record.target, record.status);
        assert_eq!(parts, ("GET", "/a?b=c", 200), "{line}");
        let address = record.peer.map(|peer| peer.to_string());
        assert_eq!(address.as_deref(), peer, "{line}");
        assert_eq!(headers(&record), text(expected), "{line}");
        assert!(Entry::new(record, None, PLACE).is_ok());
    }
}

#[test]
fn lines_of_caddy_traefik_and_nginx_in_json_are_read() {
    for (line, is_arrival, expected) in [
        (
            r#"{"ts":1800000000.25,"request":{"remote_ip":"192.0.2.1","remote_port":"4321","client_ip":"10.1.1.1","method":"GET","host":"example.com","uri":"/a?b=c","headers":{"User-Agent":["curl/8"],"X-Many":["1","2"]}},"duration":0.012345,"status":200}"#,
            false,
            &[("user-agent", "curl/8"), ("x-many", "1"), ("x-many", "2")][..],
        ),
        (
            r#"{"ClientAddr":"192.0.2.1:4321","ClientHost":"192.0.2.1","ClientPort":"4321","DownstreamStatus":200,"Duration":12345000,"RequestHost":"example.com","RequestMethod":"GET","RequestPath":"/a?b=c","StartLocal":"2027-01-15T10:00:00.25+02:00","StartUTC":"2027-01-15T08:00:00.25Z","request_User-Agent":"curl/8","request_X-Empty":"","time":"2027-01-15T08:00:00Z"}"#,
            true,
            &[("user-agent", "curl/8")],
        ),
        (
            r#"{"msec":"1800000000.250","remote_addr":"192.0.2.1","request":"GET /a?b=c HTTP/1.1","status":"200","request_time":"0.012345","http_user_agent":"curl/8","http_x_forwarded_for":"-","http_host":"example.com"}"#,
            false,
            &[("user-agent", "curl/8")],
        ),
        (
            r#"{"@timestamp":"2027-01-15T08:00:00.250+0000","client":"[192.0.2.1]:4321","method":"GET","url":"/a?b=c","host":"example.com","status":200,"duration":"12.345ms","user_agent":"curl/8"}"#,
            false,
            &[("user-agent", "curl/8")],
        ),
    ] {
        let record = parse(line, &names()).unwrap_or_else(|reason| panic!("{line}: {reason}"));
        let time = LoggedTime {
            micros: TIME + 250_000,
            is_whole_second: false,
            is_arrival,
        };
        assert_eq!(record.time, time, "{line}");
        let parts = (&*record.method, &*record.target, record.status);
        assert_eq!(parts, ("GET", "/a?b=c", 200), "{line}");
        assert_eq!(record.host.as_deref(), Some("example.com"));
        assert_eq!(record.duration_us, Some(12_345), "{line}");
        assert_eq!(headers(&record), text(expected), "{line}");
        let peer = record.peer.map(|peer| peer.to_string());
        let entry = Entry::new(record, None, PLACE).expect("a request");
        let arrived = if is_arrival {
            time.micros
        } else {
            time.micros - 12_345
        };
        assert_eq!(entry.at, arrived, "{line}");
        if !line.contains("[192") {
            assert_eq!(peer.as_deref(), Some("192.0.2.1"), "{line}");
        }
    }
}

#[test]
fn fields_may_have_other_names() {
    let options = [
        "time=when.at",
        "peer=from",
        "status=code",
        "duration=took",
        "header:X-Api-Key=key",
    ];
    let options = options.map(|option| option.parse().expect("an option"));
    let names = FieldNames::new(&options, Some(super::DurationUnit::Ms));
    let line = r#"{"when":{"at":1800000000000},"from":"192.0.2.1","code":204,"took":2,"key":"k1","method":"PUT","path":"/x","time":0}"#;
    let record = parse(line, &names).expect("a request");
    assert_eq!(record.time.micros, TIME);
    assert_eq!((record.status, record.duration_us), (204, Some(2_000)));
    assert_eq!(headers(&record), text(&[("x-api-key", "k1")]));
    for mistake in ["time", "when=ts", "header:a b=c"] {
        assert!(mistake.parse::<super::FieldOption>().is_err(), "{mistake}");
    }
}

#[test]
fn every_day_of_the_common_format_is_the_calendars() {
    let first: jiff::civil::Date = "1970-01-01".parse().expect("a date");
    for days in (0..60_000).step_by(17) {
        let date = first + jiff::Span::new().days(days);
        let line = date.strftime("%d/%b/%Y:23:59:58 -0130").to_string();
        let expected = (days * 86_400 + 86_398 + 5_400) * 1_000_000;
        assert_eq!(instant::common(&line), Some(expected), "{line}");
    }
    for wrong in [
        "32/Jan/2027:08:00:00 +0000",
        "00/Jan/2027:08:00:00 +0000",
        "29/Feb/2027:08:00:00 +0000",
        "30/Feb/2028:08:00:00 +0000",
        "29/Feb/2100:08:00:00 +0000",
        "31/Apr/2027:08:00:00 +0000",
        "32/Dec/2027:08:00:00 +0000",
        "15/Jan/2227:08:00:00 +0000",
        "15/Jan/1969:08:00:00 +0000",
        "15/Jam/2027:08:00:00 +0000",
        "15/Jan/2027:24:00:00 +0000",
        "15/Jan/2027 08:00:00 +0000",
        "15/Jan/2027:08:00:00 UTC  ",
    ] {
        assert_eq!(instant::common(wrong), None, "{wrong}");
    }
}

#[test]
fn no_line_panics() {
    let lines = [
        r#"192.0.2.1 - - [15/Jan/2027:08:00:00 +0000] "GET /a?b=c HTTP/1.1" 200 123 "-" "curl/8 \x22x\x22" "203.0.113.7""#,
        r#"{"ts":1800000000.25,"request":{"remote_ip":"192.0.2.1","method":"GET","host":"example.com","uri":"/a?b=c","headers":{"User-Agent":["curl/8"]}},"duration":0.012345,"status":200}"#,
        r#"{"msec":"1800000000.250","remote_addr":"192.0.2.1","request":"GET /a?b=c HTTP/1.1","status":"200","request_time":"0.012345"}"#,
        r#"{"StartUTC":"2027-01-15T08:00:00.25Z","RequestMethod":"CONNECT","RequestPath":"a:1","DownstreamStatus":99,"Duration":-1e300}"#,
    ];
    let mut random = 42_u64;
    let mut below = |bound: usize| {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (random >> 33) as usize % bound
    };
    let mut read = 0;
    for _ in 0..50_000 {
        let mut line = lines[below(lines.len())].as_bytes().to_vec();
        for _ in 0..1 + below(6) {
            let index = below(line.len());
            match below(5) {
                0 => line[index] = below(256) as u8,
                1 => line.truncate(index.max(1)),
                2 => line.insert(index, br#""\[]{}:, x9-"#[below(12)]),
                3 => line[index] = b'9',
                _ => drop(line.remove(index)),
            }
            if line.is_empty() {
                line.push(b' ');
            }
        }
        let line = String::from_utf8_lossy(&line);
        let record = parse(&line, &names());
        read += usize::from(record.is_ok_and(|record| Entry::new(record, None, PLACE).is_ok()));
    }
    assert!((1_000..49_000).contains(&read), "{read}");
}
