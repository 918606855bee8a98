//! Which requests a limit applies to.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method,
    header::{ACCESS_CONTROL_REQUEST_METHOD, ORIGIN},
    request::Parts,
};

use self::{
    exemption::{ConditionMatch, Exemption},
    path::{PathPattern, RequestPath},
};
use crate::{
    error::InvalidValue,
    setting::{Code, CodeId, SettingValue},
};

pub(crate) mod exemption;
pub(crate) mod path;

/// Conditions on requests: by their path, by their method, and by functions.
#[derive(Clone, Debug, Default)]
pub(crate) struct SkipRules(Option<Box<Conditions>>);

#[derive(Clone, Debug, Default)]
struct Conditions {
    skip: Matches,
    only: Matches,
}

#[derive(Clone, Debug, Default)]
struct Matches {
    paths: Vec<PathPattern>,
    methods: Vec<Method>,
    with: Vec<Code<ConditionFn>>,
}

pub(crate) type ConditionFn = dyn Fn(&Parts) -> bool + Send + Sync;

impl SkipRules {
    pub(crate) fn add_path(&mut self, path: &str) {
        self.conditions().skip.paths.push(PathPattern::new(path));
    }

    pub(crate) fn add_method(&mut self, method: Method) {
        self.conditions().skip.methods.push(method);
    }

    pub(crate) fn add(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.add_code(unnamed(condition));
    }

    pub(crate) fn add_code(&mut self, condition: Code<ConditionFn>) {
        self.conditions().skip.with.push(condition);
    }

    pub(crate) fn only_path(&mut self, path: &str) {
        self.conditions().only.paths.push(PathPattern::new(path));
    }

    pub(crate) fn only_method(&mut self, method: Method) {
        self.conditions().only.methods.push(method);
    }

    pub(crate) fn only_with(&mut self, condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) {
        self.only_code(unnamed(condition));
    }

    pub(crate) fn only_code(&mut self, condition: Code<ConditionFn>) {
        self.conditions().only.with.push(condition);
    }

    fn conditions(&mut self) -> &mut Conditions {
        self.0.get_or_insert_default()
    }

    /// The condition by which the policy doesn't apply to a request; `None` if it does.
    #[inline]
    pub(crate) fn exempting(
        &self,
        parts: &Parts,
        path: &RequestPath<'_>,
    ) -> Option<ConditionMatch> {
        self.0.as_ref()?.exempting(parts, path)
    }

    /// Describes the condition by which the policy doesn't apply to a request.
    pub(crate) fn describe(&self, matched: ConditionMatch, parts: &Parts) -> Exemption {
        let none = Conditions::default();
        let Conditions { skip, only } = self.0.as_deref().unwrap_or(&none);
        match matched {
            ConditionMatch::SkipMethod => Exemption::SkipMethod(parts.method.clone()),
            ConditionMatch::SkipPath(index) => Exemption::SkipPath(skip.path(index)),
            ConditionMatch::SkipWith(index) => Exemption::SkipWith(skip.code_name(index)),
            ConditionMatch::OnlyMethod => Exemption::OnlyMethod(only.methods.clone()),
            ConditionMatch::OnlyPath => Exemption::OnlyPath(
                (0..only.paths.len())
                    .map(|index| only.path(index))
                    .collect(),
            ),
            ConditionMatch::OnlyWith(index) => Exemption::OnlyWith(only.code_name(index)),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// The values of `skip` and of `only`, each unset if it has no conditions.
    pub(crate) fn values(&self) -> [SettingValue; 2] {
        let conditions = self.0.as_deref();
        let value = |matches: Option<&Matches>| matches.map_or(SettingValue::Unset, Matches::value);
        [
            value(conditions.map(|conditions| &conditions.skip)),
            value(conditions.map(|conditions| &conditions.only)),
        ]
    }

    /// Reports the paths that no condition can have.
    pub(crate) fn validate(&self, report: &mut dyn FnMut(InvalidValue)) {
        let Some(conditions) = &self.0 else {
            return;
        };
        for (field, matches) in [
            ("skip.paths[]", &conditions.skip),
            ("only.paths[]", &conditions.only),
        ] {
            for (index, pattern) in matches.paths.iter().enumerate() {
                if let Err(invalid) = pattern.validate() {
                    report(invalid.in_entry(field, index));
                }
            }
        }
    }
}

impl Conditions {
    fn exempting(&self, parts: &Parts, path: &RequestPath<'_>) -> Option<ConditionMatch> {
        let Self { skip, only } = self;
        if skip.methods.contains(&parts.method) {
            return Some(ConditionMatch::SkipMethod);
        }
        let mut paths = skip.paths.iter();
        if let Some(index) = paths.position(|pattern| pattern.matches(path)) {
            return Some(ConditionMatch::SkipPath(index));
        }
        if let Some(index) = skip.with.iter().position(|condition| condition(parts)) {
            return Some(ConditionMatch::SkipWith(index));
        }
        if !only.methods.is_empty() && !only.methods.contains(&parts.method) {
            return Some(ConditionMatch::OnlyMethod);
        }
        let mut paths = only.paths.iter();
        let mut may_be_one = || paths.any(|pattern| pattern.may_match(path));
        if !only.paths.is_empty() && !may_be_one() {
            return Some(ConditionMatch::OnlyPath);
        }
        let failing = only.with.iter().position(|condition| !condition(parts));
        failing.map(ConditionMatch::OnlyWith)
    }
}

impl Matches {
    fn path(&self, index: usize) -> String {
        self.paths
            .get(index)
            .map_or(String::new(), |pattern| pattern.text.to_string())
    }

    /// The name of a function in documents, or its position, from 1.
    fn code_name(&self, index: usize) -> String {
        match self.with.get(index).map(Code::value) {
            Some(SettingValue::Text(name)) => name.to_string(),
            _ => format!("#{}", index + 1),
        }
    }

    fn value(&self) -> SettingValue {
        let with = |condition: &Code<ConditionFn>| condition.value().clone();
        let lists: [(_, Vec<_>); 3] = [
            (
                "paths",
                self.paths
                    .iter()
                    .map(|pattern| SettingValue::display(&pattern.text))
                    .collect(),
            ),
            (
                "methods",
                self.methods.iter().map(SettingValue::display).collect(),
            ),
            ("with", self.with.iter().map(with).collect()),
        ];
        let lists = lists.into_iter().filter(|(_, list)| !list.is_empty());
        let lists: Vec<_> = lists
            .map(|(name, list)| (name, SettingValue::List(list)))
            .collect();
        match lists.is_empty() {
            true => SettingValue::Unset,
            false => SettingValue::table(lists),
        }
    }
}

fn unnamed(condition: impl Fn(&Parts) -> bool + Send + Sync + 'static) -> Code<ConditionFn> {
    let condition = Arc::new(condition);
    let id = CodeId::of(&condition);
    Code::new(condition, id)
}

/// Whether it is a CORS preflight by the Fetch standard ("CORS-preflight request"): `OPTIONS`, with one `Origin` and one
/// valid `Access-Control-Request-Method`.
pub(crate) fn is_preflight(parts: &Parts) -> bool {
    let requested_method = || single_value(&parts.headers, &ACCESS_CONTROL_REQUEST_METHOD);
    parts.method == Method::OPTIONS
        && single_value(&parts.headers, &ORIGIN).is_some_and(|origin| !origin.is_empty())
        && requested_method().is_some_and(|method| Method::from_bytes(method.as_bytes()).is_ok())
}

/// The value of a field that occurs once.
fn single_value<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}
