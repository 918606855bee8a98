//! `tollgate schema`.

use tollgate::config::Document;

use crate::{
    exit::{Answer, Outcome},
    output::print_json,
};

pub(crate) fn run() -> Outcome {
    print_json(&Document::schema())?;
    Ok(Answer::Yes)
}
