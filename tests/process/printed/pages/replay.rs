//! A replay of a day's access log.

use std::fmt::Write;

use tollgate_tests::{prelude::*, rng::Rng};

use crate::printed::{page::Page, session::Session};

pub(crate) fn run(page: &mut Page) {
    let mut session = Session::start(Timers::Stopped);
    session.write("limits.toml", &page.expect("toml").text);
    session.write("access.log", &log());
    let report = page.expect("console");
    session.run(page, &report);
    page.compare_file("docs/images/replay.svg", &session.read("replay.svg"));
}

/// Requests of 600 clients over a day, most of them at noon. A crawler sends too many in the first minutes of three hours, and
/// three clients guess passwords before noon.
fn log() -> String {
    let mut random = Rng::new(1);
    let mut requests = Vec::new();
    for second in 0..86_400 {
        let hour = second / 3_600;
        let from_noon = 12_u64.abs_diff(hour);
        if random.below(40 + 20 * from_noon) < 10 {
            let client = 1 + random.below(random.clone().below(600) + 1);
            let address = format!("192.0.{}.{}", client / 200, client % 200);
            requests.push((second, address.clone(), "GET /orders", 200));
            if random.below(2) == 0 {
                requests.push((second, address, "GET /static/logo.svg", 304));
            }
        }
        let minute = second / 60 % 60;
        if [2, 9, 19].contains(&hour) && minute < 4 {
            for _ in 0..8 + random.below(12) {
                requests.push((second, "198.51.100.77".to_owned(), "GET /items", 200));
            }
        }
        if hour == 11 && minute < 20 && random.below(3) == 0 {
            let address = format!("203.0.113.{}", 66 + random.below(3));
            requests.push((second, address, "POST /login", 401));
        }
    }
    let mut log = String::new();
    for (second, address, request, status) in requests {
        let (hour, minute, second) = (second / 3_600, second / 60 % 60, second % 60);
        let time = format!("15/Jan/2027:{hour:02}:{minute:02}:{second:02} +0000");
        writeln!(
            log,
            "{address} - - [{time}] \"{request} HTTP/1.1\" {status} 512"
        )
        .expect("text");
    }
    log
}
