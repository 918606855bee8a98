//! Where metrics are registered.

use std::{fmt, sync::Arc};

use metrics::{
    Counter, Gauge, Histogram, Key, KeyName, Label, Level, Metadata, Recorder, SharedString,
    with_recorder,
};

use super::table::{ALL, Kind, Metric};

/// The recorder of a limiter's metrics, and the limiter's name.
pub(super) struct LimiterRecorder {
    limiter: SharedString,
    /// `None` is the current one, wherever a metric is registered.
    recorder: Option<Arc<dyn Recorder + Send + Sync>>,
}

impl LimiterRecorder {
    pub(super) fn new(limiter: String, recorder: Option<Arc<dyn Recorder + Send + Sync>>) -> Self {
        Self {
            limiter: Arc::<str>::from(limiter).into(),
            recorder,
        }
    }

    pub(super) fn describe_all(&self) {
        self.with(|recorder| {
            for metric in ALL {
                let (name, about) = (KeyName::from_const_str(metric.name), metric.about.into());
                match metric.kind {
                    Kind::Counter => recorder.describe_counter(name, Some(metric.unit), about),
                    Kind::Gauge => recorder.describe_gauge(name, Some(metric.unit), about),
                    Kind::Histogram => recorder.describe_histogram(name, Some(metric.unit), about),
                }
            }
        });
    }

    pub(super) fn counter<const N: usize>(
        &self,
        metric: &Metric,
        labels: [SharedString; N],
    ) -> Counter {
        let key = self.key(metric, labels);
        self.with(|recorder| recorder.register_counter(&key, &METADATA))
    }

    pub(super) fn gauge<const N: usize>(
        &self,
        metric: &Metric,
        labels: [SharedString; N],
    ) -> Gauge {
        let key = self.key(metric, labels);
        self.with(|recorder| recorder.register_gauge(&key, &METADATA))
    }

    pub(super) fn histogram<const N: usize>(
        &self,
        metric: &Metric,
        labels: [SharedString; N],
    ) -> Histogram {
        let key = self.key(metric, labels);
        self.with(|recorder| recorder.register_histogram(&key, &METADATA))
    }

    fn key<const N: usize>(&self, metric: &Metric, values: [SharedString; N]) -> Key {
        debug_assert_eq!(metric.labels.len(), N, "{}", metric.name);
        let limiter = Label::new("limiter", self.limiter.clone());
        let names = metric.labels.iter().copied();
        let labels = names
            .zip(values)
            .map(|(name, value)| Label::new(name, value));
        Key::from_parts(
            metric.name,
            [limiter].into_iter().chain(labels).collect::<Vec<_>>(),
        )
    }

    fn with<T>(&self, call: impl FnOnce(&dyn Recorder) -> T) -> T {
        match &self.recorder {
            Some(recorder) => call(recorder),
            None => with_recorder(call),
        }
    }
}

const METADATA: Metadata<'static> = Metadata::new("tollgate", Level::INFO, Some("tollgate"));

impl fmt::Debug for LimiterRecorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut recorder = f.debug_struct("LimiterRecorder");
        recorder
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}
