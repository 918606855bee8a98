//! `replay`: a document's policies on access logs, in virtual time.

mod documents;
mod equal;
mod log;
mod model;
mod reading;
mod runs;
mod scene;
