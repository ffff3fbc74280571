//! The annotations of a pod that say whether its containers are served, and how.

use std::collections::HashMap;

use fastpath_page::Clocks;

use crate::options::Method;

/// Annotation with the clocks: `auto`, `all`, a list, or `off`.
pub(crate) const CLOCKS: &str = "fastpath.io/clocks";
/// Annotation with the method: `attach` or `preload`.
pub(crate) const METHOD: &str = "fastpath.io/method";

/// What a pod's annotations ask for one of its containers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Wish {
    /// Clocks to serve.
    pub clocks: Clocks,
    /// How to serve them.
    pub method: Method,
}

/// Returns what the annotations ask for a container; `None` if they do not ask for it. The error: a value that cannot be
/// understood, for which the container is left alone.
pub(crate) fn wish(
    annotations: &HashMap<String, String>,
    container: &str,
    default: Method,
) -> Result<Option<Wish>, String> {
    let wrong = |key: &str, why: &dyn std::fmt::Display| format!("annotation {key}: {why}");
    let (key, clocks) = match value(annotations, CLOCKS, container) {
        None => return Ok(None),
        Some((_, "off")) => return Ok(None),
        Some((key, value)) => (key, value),
    };
    let clocks = clocks.parse().map_err(|why| wrong(&key, &why))?;
    let method = match value(annotations, METHOD, container) {
        None => default,
        Some((key, name)) => name.parse().map_err(|why| wrong(&key, &why))?,
    };
    Ok(Some(Wish { clocks, method }))
}

/// Returns the annotation that applies to a container, and its value: `KEY.container.NAME`, or `KEY` for all containers
/// of the pod.
fn value<'a>(annotations: &'a HashMap<String, String>, key: &str, container: &str) -> Option<(String, &'a str)> {
    [format!("{key}.container.{container}"), key.to_owned()]
        .into_iter()
        .find_map(|key| annotations.get(&key).map(|value| (key, value.trim())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(of: &[(&str, &str)]) -> HashMap<String, String> {
        of.iter()
            .map(|(key, value)| (key.to_string(), value.to_string()))
            .collect()
    }

    fn wished(of: &[(&str, &str)], container: &str) -> Result<Option<Wish>, String> {
        wish(&annotations(of), container, Method::Attach)
    }

    #[test]
    fn a_pod_without_the_annotation_asks_for_nothing() {
        assert_eq!(
            wished(&[("fastpath.io/method", "preload"), ("other", "auto")], "app"),
            Ok(None)
        );
        assert_eq!(wished(&[(CLOCKS, "off")], "app"), Ok(None));
    }

    #[test]
    fn clocks_have_the_syntax_of_all_commands() {
        let clocks = |value| wished(&[(CLOCKS, value)], "app").map(|wish| wish.map(|wish| wish.clocks));
        assert_eq!(clocks("auto"), Ok(Some(Clocks::Auto)));
        assert_eq!(clocks(" all "), Ok(Some(Clocks::ALL)));
        assert_eq!(clocks("realtime,tai"), Ok(Some("realtime,tai".parse().unwrap())));
    }

    #[test]
    fn an_annotation_of_one_container_precedes_the_pods() {
        let all = [
            (CLOCKS, "all"),
            ("fastpath.io/clocks.container.proxy", "off"),
            ("fastpath.io/method.container.app", "preload"),
        ];
        assert_eq!(wished(&all, "proxy"), Ok(None));
        assert_eq!(wished(&all, "app").unwrap().unwrap().method, Method::Preload);
        assert_eq!(wished(&all, "other").unwrap().unwrap().method, Method::Attach);
    }

    #[test]
    fn a_value_that_cannot_be_understood_is_an_error_that_names_the_annotation() {
        let why = wished(&[(CLOCKS, "always")], "app").unwrap_err();
        assert!(why.contains("fastpath.io/clocks") && why.contains("always"), "{why}");
        let why = wished(&[(CLOCKS, "auto"), (METHOD, "magic")], "app").unwrap_err();
        assert!(why.contains("fastpath.io/method") && why.contains("magic"), "{why}");
    }
}
