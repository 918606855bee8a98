//! The figure of a rejection cache and of batches at work.

use std::time::Duration;

use plotters::{prelude::*, style::text_anchor::HPos};

use crate::{
    Result, batch,
    cache::{STEP, STEPS, Step},
    figure::{
        Bars, Canvas, Figure, Mark, Panels, Weight,
        ticks::{Axis, count, milliseconds, seconds},
    },
};

/// The height of a request's line.
const LINE: i32 = 8;

/// The space between the requests of two calls, in lines.
const SPACE: usize = 2;

/// What is drawn of the batches' run, in microseconds. The rest of the width is for labels.
const BATCHES_END: f64 = 5_600.0;

pub(crate) fn figure(steps: Vec<Step>, batches: batch::Run) -> Figure {
    let sum = |of: fn(&Step) -> u64| steps.iter().map(of).sum::<u64>();
    let (admitted, rejected) = (sum(|step| step.admitted), sum(|step| step.rejected));
    let cached = sum(|step| step.cached);
    let calls = batches.calls.iter();
    let calls: Vec<String> = calls.map(label).collect();
    let description = format!(
        "Of {} requests, Redis admitted {admitted} and rejected {rejected}; {cached} were rejected in process. \
         {} requests took {} calls: {}.",
        admitted + rejected + cached,
        batches.requests.len(),
        batches.calls.len(),
        calls.join("; "),
    );
    Figure {
        name: "cache-and-batches",
        title: "A rejection cache and batches at work",
        description,
        height: lower(&batches).bottom(),
        body: Box::new(move |canvas| draw(canvas, &steps, &batches)),
    }
}

fn label(call: &batch::Call) -> String {
    match call.requests {
        1 => "1 request".to_owned(),
        requests => format!("{requests} requests, {} keys", call.keys),
    }
}

fn upper() -> Panels {
    let end = (STEP * STEPS).as_secs_f64();
    let ticks = [0.0, 5.0, 10.0, 15.0, 20.0, 25.0];
    Panels::new(2, 90, Axis::new(0.0..end, &ticks, seconds))
}

fn lower(batches: &batch::Run) -> Panels {
    let ticks = [0.0, 1_000.0, 2_000.0, 3_000.0, 4_000.0];
    let x = Axis::new(0.0..BATCHES_END, &ticks, milliseconds);
    let height = LINE * (rows(batches) as i32 + 1);
    Panels::new(1, height, x).below(upper().bottom() + 8)
}

/// The lines of requests, and the space between calls, in lines.
fn rows(batches: &batch::Run) -> f64 {
    (batches.requests.len() + (batches.calls.len() - 1) * SPACE) as f64
}

fn draw(canvas: &Canvas<'_, '_>, steps: &[Step], batches: &batch::Run) -> Result<()> {
    let theme = canvas.theme;
    canvas.legend(&[
        (Mark::Filled(theme.admitted), "admitted", 44),
        (Mark::Filled(theme.rejected), "rejected by Redis", 152),
        (Mark::Hollow(theme.rejected), "rejected by the cache", 320),
    ])?;
    let each = Duration::from_secs(1).as_millis() / STEP.as_millis();
    let seconds: Vec<Step> = steps
        .chunks(each as usize)
        .map(|steps| {
            steps.iter().fold(Step::default(), |sum, step| Step {
                admitted: sum.admitted + step.admitted,
                rejected: sum.rejected + step.rejected,
                cached: sum.cached + step.cached,
                reads: sum.reads + step.reads,
            })
        })
        .collect();
    let sum = |of: fn(&Step) -> u64| seconds.iter().map(of).sum::<u64>();
    let by_redis = sum(|step| step.admitted + step.rejected);
    let all = by_redis + sum(|step| step.cached);
    let panels = upper();
    let y = Axis::new(0.0..42.0, &[0.0, 20.0, 40.0], count);
    let draw = |chart: &mut _, mark, of: fn(&Step) -> (u64, u64)| {
        let values = seconds.iter().map(of);
        let values = values.map(|(from, to)| (from as i64, to as i64));
        Bars(0.0, 1.0, 0.08).draw(chart, mark, values)
    };

    let about = format!("{all} requests in 25 s");
    let mut chart = canvas.panel(&panels, 0, ("Requests in each second", &about), &y)?;
    let admitted = |step: &Step| (0, step.admitted);
    draw(&mut chart, Mark::Filled(theme.admitted), admitted)?;
    let rejected = |step: &Step| (step.admitted, step.admitted + step.rejected);
    draw(&mut chart, Mark::Filled(theme.rejected), rejected)?;
    let cached = |step: &Step| {
        let calls = step.admitted + step.rejected;
        (calls, calls + step.cached)
    };
    draw(&mut chart, Mark::Hollow(theme.rejected), cached)?;

    let about = format!("{by_redis} for requests, {} reads", sum(|step| step.reads));
    let mut chart = canvas.panel(&panels, 1, ("Calls of Redis", &about), &y)?;
    draw(&mut chart, Mark::Filled(theme.text), |step| {
        (0, step.admitted + step.rejected)
    })?;
    draw(&mut chart, Mark::Hollow(theme.text), |step| {
        let calls = step.admitted + step.rejected;
        (calls, calls + step.reads)
    })?;

    let y = Axis::new(rows(batches)..-1.0, &[], count);
    let about = format!(
        "{} requests in {} calls",
        batches.requests.len(),
        batches.calls.len()
    );
    let heading = ("Batches: waiting (thin), in a call (thick)", &*about);
    let mut chart = canvas.panel(&lower(batches), 0, heading, &y)?;
    let (mut requests, mut row) = (batches.requests.iter(), 0);
    for call in &batches.calls {
        let (first, mut answered) = (row, 0.0);
        for request in requests.by_ref().take(call.requests) {
            let y = row as f64;
            answered = request.answered as f64;
            let (came, sent) = ((request.came as f64, y), (request.sent as f64, y));
            let (waits, runs) = (vec![came, sent], vec![sent, (answered, y)]);
            chart.draw_series([
                PathElement::new(waits, theme.dim.stroke_width(1)),
                PathElement::new(runs, theme.admitted.stroke_width(5)),
            ])?;
            row += 1;
        }
        let middle = (first + row - 1) as f64 / 2.0;
        let (x, y) = chart.backend_coord(&(answered, middle));
        canvas.text(&label(call), (x + 8, y), HPos::Left, Weight::Normal)?;
        row += SPACE;
    }
    Ok(())
}
