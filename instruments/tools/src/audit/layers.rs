//! Container images: an OCI layout, an archive of `docker save`, or a single layer. Layers are read as streams and
//! applied in order: files that a later layer replaces or removes (whiteouts) are not reported.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::marker::PhantomData;
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::de::{DeserializeOwned, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use crate::audit::archive::{self, Budget, Entries, Meter, What};
use crate::audit::bytes::OnDisk;
use crate::audit::judge::{Judged, judge};
use crate::audit::report::Gathered;
use crate::audit::walk::{self, AuditOptions, Progress};

/// Limits for one archive.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest number of bytes that come out of it.
    pub bytes: u64,
    /// Longest time to read it.
    pub time: Duration,
    /// Largest number of bytes that come out of one byte of it. The limit of gzip is 1,032.
    pub ratio: u64,
    /// Size of the largest ELF file in it that is judged; a larger one is listed as not judged.
    pub file_bytes: u64,
    /// Largest number of bytes of all names in it.
    pub name_bytes: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            bytes: 64 << 30,
            time: Duration::from_secs(600),
            ratio: 2_000,
            file_bytes: 2 << 30,
            name_bytes: 64 << 20,
        }
    }
}

/// Largest manifest. Real ones have some KiB.
const MOST_JSON: u64 = 4 << 20;
const MOST_JSON_TOGETHER: usize = 32 << 20;
/// Largest file of an archive that is kept in memory; a larger one goes to an unnamed temporary file.
const IN_MEMORY: u64 = 8 << 20;
/// Deepest nesting of indices.
const DEEPEST_INDEX: u32 = 4;
/// Most layers and images in one archive, so that an archive cannot have one applied thousands of times by naming it
/// thousands of times.
const MOST_LAYERS: usize = 1_000;
/// Most elements of a list in a manifest, bytes of all manifests as often as they are named, and layers of all images
/// together.
const MOST_LISTED: usize = 10_000;
const MOST_JSON_PARSED: usize = 64 << 20;
const MOST_LAYERS_NAMED: usize = 100_000;
/// Most work of applying layers, in the units of [`Layer::weight`]: some seconds.
const MOST_WORK: usize = 640 << 20;

/// Returns whether bytes begin as a compressed archive does.
pub(crate) fn is_packed(first: &[u8]) -> bool {
    const FORMS: [&[u8]; 5] = [
        b"\x1f\x8b",
        b"\x28\xb5\x2f\xfd",
        b"BZh",
        b"\xfd7zXZ",
        b"\x04\x22\x4d\x18",
    ];
    FORMS.iter().any(|form| first.starts_with(form))
}

/// One change by a layer to the files below it.
enum Change {
    /// A file, with its result if it was judged.
    Put(String, Option<Arc<Judged>>),
    /// A directory. It keeps its contents.
    Directory(String),
    /// Another name of a file of this or a lower layer.
    Link(String, String),
    /// A whiteout.
    Remove(String),
    /// Removes everything that lower layers have in a directory.
    Empty(String),
}

#[derive(Default)]
struct Layer {
    changes: Vec<Change>,
    unjudged: Vec<(String, String)>,
    /// Cost of applying it: names are compared and copied, so their bytes count.
    weight: usize,
}

/// Layers and manifests of an archive.
#[derive(Default)]
struct Bundle {
    layers: HashMap<String, Arc<Layer>>,
    json: HashMap<String, Vec<u8>>,
    /// Links to layers: in old archives, a layer that another image has too is a symbolic or hard link.
    links: HashMap<String, String>,
    json_bytes: usize,
    name_bytes: usize,
}

/// Judges an OCI layout.
pub(crate) fn of_layout(
    path: &Path,
    options: &AuditOptions,
    progress: &Progress,
    gathered: &mut Gathered,
) -> Result<(), String> {
    let mut bundle = Bundle::default();
    let mut read = |name: &str| walk::read_small(&path.join(name), MOST_JSON).ok();
    let images = Manifests::new(&mut read).of_index("index.json", 0)?;
    let meter = Meter::new(budget(&options.limits));
    for name in images.iter().flat_map(|image| &image.layers) {
        if bundle.layers.contains_key(name) || bundle.layers.len() >= MOST_LAYERS {
            continue;
        }
        let Ok((file, meta)) = walk::open(&path.join(name)) else {
            continue;
        };
        if meta.is_file() {
            let layer = one_layer(meter.input(file), &meter, options, progress, &mut bundle.name_bytes);
            bundle.layers.insert(name.clone(), Arc::new(layer));
        }
    }
    report(path, &images, &bundle, options, gathered);
    Ok(())
}

/// Judges an archive: an image by `docker save`, an OCI layout, or a layer.
pub(crate) fn of_archive(
    path: &Path,
    file: &File,
    length: u64,
    options: &AuditOptions,
    progress: &Progress,
    gathered: &mut Gathered,
) -> Result<(), String> {
    let meter = Meter::new(budget(&options.limits));
    judge_archive(
        path,
        meter.input(file.take(length)),
        &meter,
        options,
        progress,
        gathered,
    )
}

fn budget(limits: &Limits) -> Budget {
    Budget {
        bytes: limits.bytes,
        time: limits.time,
        ratio: limits.ratio,
    }
}

fn judge_archive(
    path: &Path,
    reader: impl Read,
    meter: &Meter,
    options: &AuditOptions,
    progress: &Progress,
    gathered: &mut Gathered,
) -> Result<(), String> {
    let mut bundle = Bundle::default();
    let plain = meter.unpacked(reader).map_err(|e| e.to_string())?;
    let outer = gather(Entries::new(plain), meter, options, progress, &mut bundle);
    let mut read = |name: &str| bundle.json.get(name).cloned();
    let images = if bundle.json.contains_key("manifest.json") {
        Manifests::new(&mut read).of_docker()
    } else if bundle.json.contains_key("index.json") {
        Manifests::new(&mut read).of_index("index.json", 0)
    } else {
        Ok(Vec::new())
    };
    // An archive that only looked like an image is still a layer.
    match images {
        Ok(images) if !images.is_empty() => report(path, &images, &bundle, options, gathered),
        Ok(_) => {
            bundle.layers.insert(String::new(), Arc::new(outer));
            let image = ImageOf {
                name: None,
                layers: vec![String::new()],
            };
            report(path, &[image], &bundle, options, gathered);
            return Ok(());
        }
        Err(why) => gathered.give_up_image(path.display().to_string(), why),
    }
    for (name, why) in outer.unjudged {
        gathered.give_up(format!("{}!/{name}", path.display()), why);
    }
    Ok(())
}

/// Returns whether images keep layers or manifests under this name.
fn is_of_image(name: &str) -> bool {
    let is_hex = |text: &str| text.len() >= 32 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(rest) = name.strip_prefix("blobs/") {
        return rest.split_once('/').is_some_and(|(_, digest)| is_hex(digest));
    }
    match name.split_once('/') {
        // Docker names the directory by a digest; other tools number them.
        Some((_, file)) => file == "layer.tar",
        None => {
            [".tar", ".tar.gz", ".tgz", ".tar.zst"]
                .iter()
                .any(|end| name.ends_with(end))
                || name.split_once('.').is_some_and(|(stem, _)| is_hex(stem))
        }
    }
}

/// Reads an archive that may be an image: layers and manifests into the bundle; the rest as a layer.
fn gather<R: Read>(
    mut entries: Entries<R>,
    meter: &Meter,
    options: &AuditOptions,
    progress: &Progress,
    bundle: &mut Bundle,
) -> Layer {
    let mut outer = Layer::default();
    let result = each(
        &mut entries,
        &mut outer,
        options,
        progress,
        &mut 0,
        |name, what, entries, names| {
            match what {
                What::HardLink(target) if is_of_image(name) => {
                    bundle.links.insert(name.to_owned(), target.clone());
                    return Ok(true);
                }
                What::File if is_of_image(name) || matches!(name, "manifest.json" | "index.json") => {}
                _ => return Ok(false),
            }
            *names += name.len();
            let mut data = entries.data();
            let mut first = Vec::new();
            data.by_ref().take(512).read_to_end(&mut first)?;
            let is_json = first.first().is_some_and(|byte| matches!(byte, b'{' | b'['));
            let is_tar = <&[u8; 512]>::try_from(first.as_slice()).is_ok_and(archive::is_header);
            let whole = io::Cursor::new(first.clone()).chain(data);
            if is_json {
                let mut text = Vec::new();
                whole.take(MOST_JSON).read_to_end(&mut text)?;
                bundle.json_bytes += text.len();
                if bundle.json_bytes <= MOST_JSON_TOGETHER {
                    bundle.json.insert(name.to_owned(), text);
                }
            } else if (is_packed(&first) || is_tar) && bundle.layers.len() < MOST_LAYERS {
                let layer = one_layer(whole, meter, options, progress, &mut bundle.name_bytes);
                bundle.layers.insert(name.to_owned(), Arc::new(layer));
            }
            Ok(true)
        },
    );
    if let Err(e) = result {
        outer.unjudged.push((String::new(), e.to_string()));
    }
    outer
}

/// Reads one layer to its end, or as far as it can be read.
fn one_layer(
    reader: impl Read,
    meter: &Meter,
    options: &AuditOptions,
    progress: &Progress,
    names: &mut usize,
) -> Layer {
    let mut layer = Layer::default();
    let result = meter.unpacked(reader).and_then(|plain| {
        each(
            &mut Entries::new(plain),
            &mut layer,
            options,
            progress,
            names,
            |_, _, _, _| Ok(false),
        )
    });
    if let Err(e) = result {
        layer.unjudged.push((String::new(), e.to_string()));
    }
    layer
}

/// Reads the entries of an archive; those that `take` does not take become part of the layer.
fn each<R: Read>(
    entries: &mut Entries<R>,
    layer: &mut Layer,
    options: &AuditOptions,
    progress: &Progress,
    names: &mut usize,
    mut take: impl FnMut(&str, &What, &mut Entries<R>, &mut usize) -> io::Result<bool>,
) -> io::Result<()> {
    while let Some(entry) = entries.next()? {
        progress.add(entry.size);
        let Some(path) = entry.path else {
            note(
                layer,
                "(a name with ..)",
                "it would lie outside of the image; not judged",
            );
            continue;
        };
        if take(&path, &entry.what, entries, names)? {
            continue;
        }
        let length = path.len();
        *names += length + size_of::<Change>();
        if *names > options.limits.name_bytes {
            return Err(io::Error::other(
                "its names fill more memory than is spent on them; given up",
            ));
        }
        let (directory, file) = path.rsplit_once('/').unwrap_or(("", &path));
        let change = match (file.strip_prefix(".wh."), entry.what) {
            (Some(".wh..opq"), _) => Change::Empty(directory.to_owned()),
            (Some(removed), _) if !removed.starts_with(".wh.") => {
                let slash = if directory.is_empty() { "" } else { "/" };
                Change::Remove(format!("{directory}{slash}{removed}"))
            }
            (_, What::Directory) => Change::Directory(path),
            (_, What::HardLink(target)) => Change::Link(path, target),
            (_, What::File) => {
                let judged = judge_entry(entries, entry.size, options)?;
                let judged = judged.unwrap_or_else(|why| {
                    note(layer, &path, &why);
                    None
                });
                *names += judged.as_ref().map_or(0, Judged::bytes);
                Change::Put(path, judged.map(Arc::new))
            }
            (_, What::Sparse) => {
                note(layer, &path, "a sparse file; not judged");
                Change::Put(path, None)
            }
            (_, What::Other) => Change::Put(path, None),
        };
        layer.weight += WEIGHT_OF_A_CHANGE + length;
        layer.changes.push(change);
    }
    Ok(())
}

/// Weight of a change apart from its name.
const WEIGHT_OF_A_CHANGE: usize = 64;

/// Records the reason why a file was not judged, unless there are too many records.
fn note(layer: &mut Layer, path: &str, why: &str) {
    const MOST: usize = 1_000;
    if layer.unjudged.len() < MOST {
        layer.unjudged.push((path.to_owned(), why.to_owned()));
        layer.weight += WEIGHT_OF_A_CHANGE + path.len();
    }
}

/// Judges a file of an archive. The outer error is about the archive, the inner one about the file.
fn judge_entry<R: Read>(
    entries: &mut Entries<R>,
    size: u64,
    options: &AuditOptions,
) -> io::Result<Result<Option<Judged>, String>> {
    let mut data = entries.data();
    let mut first = Vec::new();
    data.by_ref().take(4).read_to_end(&mut first)?;
    if !crate::audit::elf::is_elf(&first) {
        return Ok(Ok(None));
    }
    if size > options.limits.file_bytes {
        return Ok(Err(format!(
            "larger than {} MiB; not judged",
            options.limits.file_bytes >> 20
        )));
    }
    let mut whole = io::Cursor::new(first).chain(data);
    let mut judged = if size <= IN_MEMORY {
        let mut bytes = Vec::new();
        whole.read_to_end(&mut bytes)?;
        judge(bytes.as_slice())
    } else {
        let mut spool = tempfile::tempfile()?;
        io::copy(&mut whole, &mut spool)?;
        spool.flush()?;
        spool.seek(SeekFrom::Start(0))?;
        judge(&OnDisk::new(spool, size))
    };
    if let Ok(Some(judged)) = &mut judged {
        // `--rescue` examines no files in archives.
        judged.calls = Vec::new();
    }
    Ok(judged)
}

/// One image: its name, and the names of its layers, lowest first.
struct ImageOf {
    name: Option<String>,
    layers: Vec<String>,
}

/// Reads manifests and indices from an archive. The archive decides how often they name one another, so the total that
/// is parsed has a limit.
struct Manifests<'a> {
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
    fn new(read: &'a mut dyn FnMut(&str) -> Option<Vec<u8>>) -> Manifests<'a> {
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
    fn of_docker(&mut self) -> Result<Vec<ImageOf>, String> {
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
    fn of_index(&mut self, name: &str, depth: u32) -> Result<Vec<ImageOf>, String> {
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

/// Applies the layers of each image in order and reports the files that are left.
fn report(path: &Path, images: &[ImageOf], bundle: &Bundle, options: &AuditOptions, gathered: &mut Gathered) {
    let archive = path.display().to_string();
    // The archive also decides how much there is to apply, so the total of all images has a limit.
    let mut work_left = MOST_WORK;
    for image in images {
        let prefix = match &image.name {
            Some(name) if images.len() > 1 => format!("{archive}!{name}!/"),
            _ => format!("{archive}!/"),
        };
        let mut files: BTreeMap<&str, (Arc<Judged>, &str)> = BTreeMap::new();
        for name in &image.layers {
            let Some(layer) = bundle.layer(name) else {
                gathered.give_up_image(
                    format!("{prefix}{name}"),
                    "the archive names this layer and does not contain it".to_owned(),
                );
                work_left = work_left.saturating_sub(WEIGHT_OF_A_CHANGE + prefix.len());
                continue;
            };
            if layer.weight > work_left {
                gathered.give_up_image(
                    prefix.clone(),
                    "its layers change more files than is reasonable; given up".to_owned(),
                );
                break;
            }
            work_left -= layer.weight;
            for (file, why) in &layer.unjudged {
                let of_layer = if name.is_empty() || !file.is_empty() {
                    String::new()
                } else {
                    format!("layer {name}")
                };
                let path = format!("{prefix}{of_layer}{file}");
                if file.is_empty() {
                    gathered.give_up_image(path, why.clone());
                } else {
                    gathered.give_up(path, why.clone());
                }
            }
            apply(layer, name, &mut files);
        }
        // A file with several names is reported by the first.
        let mut reported: std::collections::HashSet<*const Judged> = std::collections::HashSet::new();
        for (file, (judged, layer)) in &files {
            if reported.insert(Arc::as_ptr(judged)) {
                let layer = (!layer.is_empty()).then_some(*layer);
                gathered.add(
                    &format!("{prefix}{file}"),
                    layer,
                    Judged::clone(judged),
                    options.with_programs,
                );
            }
        }
    }
}

impl Bundle {
    fn layer(&self, name: &str) -> Option<&Layer> {
        let layer = self
            .layers
            .get(name)
            .or_else(|| self.layers.get(self.links.get(name)?))?;
        Some(layer)
    }
}

fn apply<'a>(layer: &'a Layer, name: &'a str, files: &mut BTreeMap<&'a str, (Arc<Judged>, &'a str)>) {
    // A layer's whiteouts concern the layers below it, wherever in the layer they are.
    for change in &layer.changes {
        match change {
            Change::Remove(path) => remove(files, path, true),
            Change::Empty(directory) => remove(files, directory, false),
            _ => {}
        }
    }
    for change in &layer.changes {
        match change {
            Change::Put(path, judged) => {
                remove(files, path, true);
                if let Some(judged) = judged {
                    files.insert(path, (judged.clone(), name));
                }
            }
            Change::Directory(path) => {
                files.remove(path.as_str());
            }
            Change::Link(path, target) => {
                let known = files.get(target.as_str()).cloned();
                remove(files, path, true);
                if let Some(known) = known {
                    files.insert(path, known);
                }
            }
            Change::Remove(_) | Change::Empty(_) => {}
        }
    }
}

/// Removes all names below a path and, if `with_itself`, the path itself.
fn remove<T>(files: &mut BTreeMap<&str, T>, path: &str, with_itself: bool) {
    if with_itself {
        files.remove(path);
    }
    if path.is_empty() {
        files.clear();
        return;
    }
    let below = format!("{path}/");
    while let Some(found) = files
        .range::<str, _>((Bound::Included(below.as_str()), Bound::Unbounded))
        .next()
        .map(|(found, _)| *found)
        .filter(|found| found.starts_with(&below))
    {
        files.remove(found);
    }
}

/// Judges any bytes as an archive, for the fuzzer.
#[doc(hidden)]
pub fn of_bytes(bytes: &[u8], options: &AuditOptions) -> crate::audit::AuditReport {
    let mut gathered = Gathered::default();
    let meter = Meter::new(budget(&options.limits));
    let outcome = judge_archive(
        Path::new("x"),
        meter.input(bytes),
        &meter,
        options,
        &Progress::default(),
        &mut gathered,
    );
    if let Err(why) = outcome {
        gathered.give_up_image("x".to_owned(), why);
    }
    gathered.into_report(0.0)
}
