//! What the script answers, handed out to those who asked.

use std::sync::Arc;

use redis::Value;
use smallvec::SmallVec;

use super::{
    batch::{Batch, Entry, Known},
    fault,
    lane::Lane,
    question::Question,
};
use crate::{
    clock::Timestamp,
    error::StoreError,
    store::{Answer, Ask, LineAnswer, Manner, Source},
};

/// What is to be done once a batch's answers are handed out.
pub(super) struct Delivered {
    /// The server's clock.
    pub(super) at: Timestamp,
    /// Another connection would do better.
    pub(super) severs: bool,
    /// Questions to be asked again, now that the server's time is known.
    pub(super) stale: Vec<Question>,
}

fn is_stale(error: &StoreError) -> bool {
    matches!(error, StoreError::Server { code, .. } if &**code == "STALE")
}

/// Hands a script's answer out, in order of arrival. An error stands for a reply that isn't one; whoever is left in the
/// batch has no answer.
pub(super) fn deliver(
    batch: &mut Batch,
    reply: Value,
    lane: &Arc<Lane>,
) -> Result<Delivered, StoreError> {
    let mut delivered = Delivered {
        at: Timestamp::default(),
        severs: false,
        stale: Vec::new(),
    };
    let Value::Array(values) = reply else {
        return Err(garbled("not a list"));
    };
    let mut reply = Reply {
        values: values.into_iter(),
    };
    delivered.at = Timestamp::from_micros(reply.int()?);
    for entry in batch.entries() {
        match reply.int()? {
            -1 => {
                let error = reply.failure(entry)?;
                if let StoreError::Server { code, .. } = &error {
                    delivered.severs |= fault::severs_code(code);
                }
                for question in entry.questions.drain(..) {
                    if is_stale(&error) && !question.told_time {
                        delivered.stale.push(question);
                    } else {
                        question.fail(error.clone());
                    }
                }
            }
            admitted => {
                let lines = entry.lines().iter().map(|_| reply.line());
                let lines = lines.collect::<Result<_, _>>()?;
                hand_out(entry, delivered.at, admitted.max(0) as u64, lines, lane);
            }
        }
    }
    Ok(delivered)
}

/// The first come are the first served.
fn hand_out(
    entry: &mut Entry,
    at: Timestamp,
    mut admitted: u64,
    lines: SmallVec<[LineAnswer; 2]>,
    lane: &Arc<Lane>,
) {
    for question in entry.questions.drain(..) {
        let mut lines = lines.clone();
        let (mut own, mut later) = (0, 0);
        if let Ask::Take(times) = question.ask {
            own = times.min(admitted);
            admitted -= own;
            later = admitted;
            // What moved is what all of them took.
            for (line, asked) in lines.iter_mut().zip(&question.lines) {
                line.units = match asked.manner {
                    Manner::Check => 0,
                    Manner::Charge | Manner::ChargeDenied => own * asked.units,
                };
            }
        }
        let answer = Answer {
            admitted: own,
            at,
            later,
            source: Source::Store,
            lines,
        };
        question.answer(answer, lane);
    }
}

struct Reply {
    values: std::vec::IntoIter<Value>,
}

impl Reply {
    fn int(&mut self) -> Result<i64, StoreError> {
        match self.values.next() {
            Some(Value::Int(int)) => Ok(int),
            _ => Err(garbled("a number is missing")),
        }
    }

    fn line(&mut self) -> Result<LineAnswer, StoreError> {
        Ok(LineAnswer {
            units: self.int()?.max(0) as u64,
            seen: [self.int()?, self.int()?, self.int()?],
        })
    }

    /// Why one entry failed, while the rest of its batch went on.
    fn failure(&mut self, entry: &Entry) -> Result<StoreError, StoreError> {
        let message = match self.values.next() {
            Some(Value::BulkString(bytes)) => String::from_utf8_lossy(&bytes).into_owned(),
            Some(Value::SimpleString(text)) => text,
            _ => return Err(garbled("an error is missing")),
        };
        let (code, rest) = message.split_once(' ').unwrap_or((&message, ""));
        if !matches!(code, "FOREIGN" | "WRONGTYPE") {
            return Ok(StoreError::Server {
                code: code.into(),
                message: rest.into(),
            });
        }
        let keys: Vec<_> = entry
            .lines()
            .iter()
            .filter_map(|line| Some(line.account.context::<Known>()?.names.of(&line.key)))
            .collect();
        Ok(StoreError::Foreign {
            key: keys.join(" or ").into(),
            message: if code == "FOREIGN" { rest } else { &message }.into(),
        })
    }
}

fn garbled(what: &str) -> StoreError {
    StoreError::Server {
        code: "GARBLED".into(),
        message: format!("the script's answer is not what it should be: {what}").into(),
    }
}
