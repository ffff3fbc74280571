//! The manifests of a container image.

use std::marker::PhantomData;

use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Largest manifest. Real ones have some KiB.
pub(super) const MOST_JSON: u64 = 4 << 20;
/// Deepest nesting of indices.
const DEEPEST_INDEX: u32 = 4;
/// Most layers and images in one archive, so that an archive cannot have one applied thousands of times by naming it
/// thousands of times.
pub(super) const MOST_LAYERS: usize = 1_000;
/// Most elements of a list in a manifest, bytes of all manifests as often as they are named, and layers of all images
/// together.
const MOST_LISTED: usize = 10_000;
const MOST_JSON_PARSED: usize = 64 << 20;
const MOST_LAYERS_NAMED: usize = 100_000;

/// One image: its name, and the names of its layers, lowest first.
pub(super) struct ImageOf {
    pub name: Option<String>,
    pub layers: Vec<String>,
}

/// Reads manifests and indices from an archive. The archive decides how often they name one another, so the total that
/// is parsed has a limit.
pub(super) struct Manifests<'a> {
    read: &'a mut dyn FnMut(&str) -> Option<Vec<u8>>,
    bytes_left: usize,
    layers_left: usize,
}

/// A list in JSON, truncated at a length that no image has. `null` is an empty list.
struct Few<T>(Vec<T>);

impl<T> Default for Few<T> {
    fn default() -> Few<T> {
        Few(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Few<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Few<T>, D::Error> {
        struct List<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for List<T> {
            type Value = Few<T>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list")
            }

            fn visit_unit<E>(self) -> Result<Few<T>, E> {
                Ok(Few::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Few<T>, A::Error> {
                let mut few = Vec::new();
                while few.len() < MOST_LISTED {
                    match list.next_element()? {
                        Some(element) => few.push(element),
                        None => return Ok(Few(few)),
                    }
                }
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Few(few))
            }
        }
        deserializer.deserialize_any(List(PhantomData))
    }
}

/// One entry of `docker save`'s manifest.json.
#[derive(Deserialize)]
struct SavedImage {
    #[serde(default, rename = "RepoTags")]
    tags: Few<String>,
    #[serde(default, rename = "Layers")]
    layers: Few<String>,
}

/// OCI's image index or image manifest; its lists show which of the two it is.
#[derive(Deserialize)]
struct Manifest {
    #[serde(default)]
    manifests: Few<Descriptor>,
    #[serde(default)]
    layers: Few<Descriptor>,
}

/// OCI's content descriptor.
#[derive(Deserialize)]
struct Descriptor {
    digest: Option<String>,
    #[serde(rename = "mediaType")]
    media_type: Option<String>,
    annotations: Option<Annotations>,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Annotations {
    #[serde(rename = "org.opencontainers.image.ref.name")]
    name: Option<String>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: Option<String>,
}

/// Message when no more manifests are read.
const TOO_MANY_MANIFESTS: &str = "its manifests name more than is reasonable; given up";

impl<'a> Manifests<'a> {
    pub(super) fn new(read: &'a mut dyn FnMut(&str) -> Option<Vec<u8>>) -> Manifests<'a> {
        Manifests {
            read,
            bytes_left: MOST_JSON_PARSED,
            layers_left: MOST_LAYERS_NAMED,
        }
    }

    fn parse<T: DeserializeOwned>(&mut self, name: &str) -> Result<T, String> {
        let bytes =
            (self.read)(name).ok_or_else(|| format!("{name} is missing, or larger than {} MiB", MOST_JSON >> 20))?;
        // Reading a small one takes time, too.
        self.bytes_left = self.bytes_left.saturating_sub(bytes.len().max(1 << 10));
        if self.bytes_left == 0 {
            return Err(TOO_MANY_MANIFESTS.to_owned());
        }
        serde_json::from_slice(&bytes).map_err(|e| format!("{name}: {e}"))
    }

    fn image(&mut self, name: Option<String>, layers: Vec<String>) -> Result<ImageOf, String> {
        self.layers_left = self
            .layers_left
            .checked_sub(layers.len())
            .ok_or_else(|| TOO_MANY_MANIFESTS.to_owned())?;
        Ok(ImageOf { name, layers })
    }

    /// Reads `docker save`'s manifest.json.
    pub(super) fn of_docker(&mut self) -> Result<Vec<ImageOf>, String> {
        let images: Few<SavedImage> = self.parse("manifest.json")?;
        let mut of_all = Vec::new();
        for image in images.0.into_iter().take(MOST_LAYERS) {
            let layers = image.layers.0.iter().take(MOST_LAYERS);
            let layers = layers.map(|name| name.trim_start_matches("./").to_owned()).collect();
            of_all.push(self.image(image.tags.0.into_iter().next(), layers)?);
        }
        Ok(of_all)
    }

    /// Reads OCI's index.json, or an index that it names.
    pub(super) fn of_index(&mut self, name: &str, depth: u32) -> Result<Vec<ImageOf>, String> {
        if depth > DEEPEST_INDEX {
            return Err("its indices are nested too deeply, or name themselves".to_owned());
        }
        let index: Manifest = self.parse(name)?;
        let mut images = Vec::new();
        for described in index.manifests.0 {
            if images.len() >= MOST_LAYERS {
                break;
            }
            let Some(blob) = blob_of(&described) else {
                continue;
            };
            let manifest: Manifest = match self.parse(&blob) {
                Ok(manifest) => manifest,
                Err(why) if self.bytes_left == 0 => return Err(why),
                // An archive may hold only one of an index's platforms.
                Err(_) => continue,
            };
            if !manifest.manifests.0.is_empty() {
                drop(manifest);
                images.extend(self.of_index(&blob, depth + 1)?);
                continue;
            }
            // Attestations and the like are not layers.
            let is_layer = |layer: &&Descriptor| layer.media_type.as_deref().unwrap_or("tar").contains("tar");
            let layers = manifest.layers.0.iter().take(MOST_LAYERS).filter(is_layer);
            let layers = layers.filter_map(blob_of).collect();
            let annotated = described.annotations.and_then(|annotations| annotations.name);
            let platform = described.platform.and_then(|platform| platform.architecture);
            images.push(self.image(annotated.or(platform), layers)?);
        }
        images.truncate(MOST_LAYERS);
        Ok(images)
    }
}

/// Returns the path of a descriptor's blob. `None` if the digest is malformed.
fn blob_of(described: &Descriptor) -> Option<String> {
    let (algorithm, digest) = described.digest.as_ref()?.split_once(':')?;
    let is_word = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    (is_word(algorithm) && is_word(digest)).then(|| format!("blobs/{algorithm}/{digest}"))
}
