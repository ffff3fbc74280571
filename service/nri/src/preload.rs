//! The changes to a container that load libfastpath-preload.so: two mounts, and an environment variable.

use std::path::Path;

use fastpath_page::Clocks;
use fastpath_protocol::{SOCKET, SOCKET_VARIABLE};

use crate::messages::{Container, ContainerAdjustment, KeyValue, Mount};
use crate::options::PluginOptions;

const PRELOAD: &str = "LD_PRELOAD";
const CLOCKS: &str = "FASTPATH_PRELOAD_CLOCKS";

/// Returns the changes to a container; `None` if it has them already. The error: why there can be none. A mount whose
/// source is missing would keep the container from starting.
pub(crate) fn adjustment(
    container: &Container,
    clocks: Clocks,
    options: &PluginOptions,
) -> Result<Option<ContainerAdjustment>, String> {
    let text = |path: &Path| {
        let text = path
            .to_str()
            .filter(|text| text.starts_with('/') && !text.contains([':', ' ']));
        let wrong = || format!("{} cannot be the path of a mount and of LD_PRELOAD", path.display());
        text.map(str::to_owned).ok_or_else(wrong)
    };
    let library = text(&options.library()?)?;
    let socket = text(&options.socket)?;
    // The directory, because a daemon makes a new socket when it restarts.
    let directory = options.socket.parent().filter(|directory| directory.is_dir());
    let directory = directory.ok_or_else(|| format!("there is no directory of {socket}: fastpathd does not run"))?;
    let variable = |name: &str| {
        let of = |pair: &&String| pair.split_once('=').is_some_and(|(key, _)| key == name);
        let pair = container.env.iter().rfind(of)?;
        pair.split_once('=').map(|(_, value)| value.to_owned())
    };
    let preloaded = variable(PRELOAD).unwrap_or_default();
    if preloaded.split([':', ' ']).any(|one| one == library) {
        return Ok(None);
    }
    let mounts = [text(directory)?, library.clone()]
        .into_iter()
        .filter(|path| container.mounts.iter().all(|mount| mount.destination != *path))
        .map(|path| Mount {
            destination: path.clone(),
            kind: "bind".into(),
            source: path,
            options: ["bind", "ro", "nosuid", "nodev"].map(Into::into).to_vec(),
        })
        .collect();
    let joined = match preloaded.is_empty() {
        true => library,
        false => format!("{preloaded}:{library}"),
    };
    let mut env = vec![(PRELOAD, joined)];
    if clocks != Clocks::Auto && variable(CLOCKS).is_none() {
        env.push((CLOCKS, clocks.to_string()));
    }
    if socket != SOCKET && variable(SOCKET_VARIABLE).is_none() {
        env.push((SOCKET_VARIABLE, socket));
    }
    let env = env.into_iter().map(|(key, value)| KeyValue { key: key.into(), value });
    Ok(Some(ContainerAdjustment {
        mounts,
        env: env.collect(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Method;

    fn node() -> (tempfile::TempDir, PluginOptions) {
        let node = tempfile::tempdir().unwrap();
        let library = node.path().join("libfastpath-preload.so");
        std::fs::write(&library, "").unwrap();
        std::fs::create_dir(node.path().join("run")).unwrap();
        let options = PluginOptions {
            socket: node.path().join("run/fastpathd.sock"),
            library: Some(library),
            method: Method::Preload,
        };
        (node, options)
    }

    fn variable<'a>(adjustment: &'a ContainerAdjustment, name: &str) -> Option<&'a str> {
        adjustment
            .env
            .iter()
            .find(|pair| pair.key == name)
            .map(|pair| &pair.value[..])
    }

    #[test]
    fn a_container_gets_the_directory_of_the_socket_and_the_library_read_only() {
        let (node, options) = node();
        let change = adjustment(&Container::default(), Clocks::ALL, &options)
            .unwrap()
            .unwrap();
        let at = |name: &str| node.path().join(name).to_str().unwrap().to_owned();
        let mounted: Vec<_> = change.mounts.iter().map(|mount| mount.source.clone()).collect();
        assert_eq!(mounted, [at("run"), at("libfastpath-preload.so")]);
        for mount in &change.mounts {
            assert!(mount.options.contains(&"ro".into()) && mount.destination == mount.source);
        }
        assert_eq!(variable(&change, "LD_PRELOAD"), Some(&at("libfastpath-preload.so")[..]));
        assert_eq!(variable(&change, "FASTPATH_PRELOAD_CLOCKS"), Some("all"));
        assert_eq!(
            variable(&change, "FASTPATH_SOCKET"),
            Some(&at("run/fastpathd.sock")[..])
        );
    }

    #[test]
    fn what_the_container_has_itself_is_kept() {
        let (node, options) = node();
        let run = node.path().join("run").to_str().unwrap().to_owned();
        let container = Container {
            env: vec!["LD_PRELOAD=/a.so /b.so".into(), "FASTPATH_PRELOAD_CLOCKS=tai".into()],
            mounts: vec![Mount {
                destination: run,
                ..Mount::default()
            }],
            ..Container::default()
        };
        let change = adjustment(&container, Clocks::ALL, &options).unwrap().unwrap();
        assert_eq!(change.mounts.len(), 1);
        let preloaded = variable(&change, "LD_PRELOAD").unwrap().to_owned();
        assert!(preloaded.starts_with("/a.so /b.so:/"), "{preloaded}");
        assert_eq!(variable(&change, "FASTPATH_PRELOAD_CLOCKS"), None);
        let served = Container {
            env: vec![format!("LD_PRELOAD={preloaded}")],
            ..container
        };
        assert_eq!(adjustment(&served, Clocks::ALL, &options), Ok(None));
    }

    #[test]
    fn nothing_is_changed_where_a_source_of_a_mount_is_missing() {
        let (node, options) = node();
        std::fs::remove_dir(node.path().join("run")).unwrap();
        let why = adjustment(&Container::default(), Clocks::Auto, &options).unwrap_err();
        assert!(why.contains("run/fastpathd.sock"), "{why}");
        let without = PluginOptions {
            library: Some(node.path().join("missing.so")),
            ..options
        };
        let why = adjustment(&Container::default(), Clocks::Auto, &without).unwrap_err();
        assert!(why.contains("missing.so"), "{why}");
    }
}
