//! Options of the plugin: from its command line, or from the runtime's configuration of it.

use std::path::PathBuf;

use fastpath_isa::Isa;
use serde::Deserialize;

/// How a container is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// fastpathd attaches the container's processes when its program has started.
    Attach,
    /// libfastpath-preload.so is loaded into the container's programs.
    Preload,
}

impl Method {
    /// The names, as users write them.
    pub const NAMES: [(&'static str, Method); 2] = [("attach", Method::Attach), ("preload", Method::Preload)];

    /// The method for pods that name none.
    pub const DEFAULT: Method = Method::Attach;
}

impl std::str::FromStr for Method {
    type Err = String;

    fn from_str(name: &str) -> Result<Method, String> {
        let named = Method::NAMES.iter().find(|(known, _)| *known == name);
        let (_, method) =
            named.ok_or_else(|| format!("unknown method `{name}`; the methods are attach and preload"))?;
        Ok(*method)
    }
}

/// Options of the plugin.
#[derive(Clone, Debug, PartialEq)]
pub struct PluginOptions {
    /// Socket of fastpathd.
    pub socket: PathBuf,
    /// libfastpath-preload.so on the node; `None`: the first of the usual places that has it.
    pub library: Option<PathBuf>,
    /// Method for pods that name none.
    pub method: Method,
}

/// Returns the places where the packages, `make install` and the DaemonSet put the library.
fn libraries() -> [String; 4] {
    let of_debian = format!("lib/{}-linux-gnu", Isa::HOST);
    ["local/lib", "lib", "lib64", &of_debian].map(|folder| format!("/usr/{folder}/libfastpath-preload.so"))
}

/// The runtime's configuration of the plugin (/etc/nri/conf.d/NN-fastpath.conf). What it leaves out stays as it is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Written {
    socket: Option<PathBuf>,
    library: Option<PathBuf>,
    method: Option<Method>,
}

impl PluginOptions {
    /// Returns these options with those that the runtime's configuration, in TOML, changes.
    pub fn changed_by(&self, config: &str) -> Result<PluginOptions, String> {
        let written: Written = toml::from_str(config).map_err(|error| error.to_string().trim_end().to_owned())?;
        Ok(PluginOptions {
            socket: written.socket.unwrap_or_else(|| self.socket.clone()),
            library: written.library.or_else(|| self.library.clone()),
            method: written.method.unwrap_or(self.method),
        })
    }

    /// Returns the library's path on the node.
    pub fn library(&self) -> Result<PathBuf, String> {
        match &self.library {
            Some(path) if path.is_file() => Ok(path.clone()),
            Some(path) => Err(format!("there is no {}", path.display())),
            None => {
                let libraries = libraries();
                let mut paths = libraries.iter().map(PathBuf::from);
                let found = paths.find(|path| path.is_file());
                found.ok_or_else(|| format!("there is no libfastpath-preload.so: none of {}", libraries.join(", ")))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options() -> PluginOptions {
        PluginOptions {
            socket: "/run/fastpath/fastpathd.sock".into(),
            library: None,
            method: Method::Attach,
        }
    }

    #[test]
    fn a_configuration_changes_what_it_names_and_nothing_else() {
        assert_eq!(options().changed_by(""), Ok(options()));
        let changed = options()
            .changed_by("method = \"preload\"\nlibrary = \"/opt/l.so\"\n")
            .unwrap();
        let expected = PluginOptions {
            library: Some("/opt/l.so".into()),
            method: Method::Preload,
            ..options()
        };
        assert_eq!(changed, expected);
    }

    #[test]
    fn a_mistake_in_a_configuration_is_reported_with_its_line() {
        let why = options()
            .changed_by("method = \"preload\"\nlibary = \"/opt/l.so\"\n")
            .unwrap_err();
        assert!(why.contains("line 2") && why.contains("libary"), "{why}");
    }

    #[test]
    fn a_library_that_is_named_must_exist() {
        let missing = PluginOptions {
            library: Some("/nonexistent/l.so".into()),
            ..options()
        };
        assert!(missing.library().unwrap_err().contains("/nonexistent/l.so"));
    }
}
