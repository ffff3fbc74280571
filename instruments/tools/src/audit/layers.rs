//! Container images: an OCI layout, an archive of `docker save`, or a single layer. Layers are read as streams and
//! applied in order: files that a later layer replaces or removes (whiteouts) are not reported.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::ops::Bound;
use std::path::Path;
use std::sync::Arc;

use crate::audit::archive::{self, Budget, Entries, EntryKind, Meter};
use crate::audit::judge::judge;
use crate::audit::manifests::{ImageOf, MOST_JSON, MOST_LAYERS, Manifests};
use crate::audit::open::{open, read_small};
use crate::audit::options::{AuditOptions, Limits, Progress};
use crate::audit::report::Gathered;
use crate::audit::report::Judged;
use fastpath_code::bytes::OnDisk;

/// Most bytes of all manifests.
const MOST_JSON_TOGETHER: usize = 32 << 20;
/// Largest file of an archive that is kept in memory; a larger one goes to an unnamed temporary file.
const IN_MEMORY: u64 = 8 << 20;
/// Most work of applying layers, in the units of [`Layer::weight`]: some seconds.
const MOST_WORK: usize = 640 << 20;

/// One change by a layer to the files below it.
enum LayerChange {
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
    changes: Vec<LayerChange>,
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
    let mut read = |name: &str| read_small(&path.join(name), MOST_JSON).ok();
    let images = Manifests::new(&mut read).of_index("index.json", 0)?;
    let meter = Meter::new(budget(&options.limits));
    for name in images.iter().flat_map(|image| &image.layers) {
        if bundle.layers.contains_key(name) || bundle.layers.len() >= MOST_LAYERS {
            continue;
        }
        let Ok((file, meta)) = open(&path.join(name)) else {
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
                EntryKind::HardLink(target) if is_of_image(name) => {
                    bundle.links.insert(name.to_owned(), target.clone());
                    return Ok(true);
                }
                EntryKind::File if is_of_image(name) || matches!(name, "manifest.json" | "index.json") => {}
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
            } else if (archive::is_packed(&first) || is_tar) && bundle.layers.len() < MOST_LAYERS {
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
    mut take: impl FnMut(&str, &EntryKind, &mut Entries<R>, &mut usize) -> io::Result<bool>,
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
        *names += length + size_of::<LayerChange>();
        if *names > options.limits.name_bytes {
            return Err(io::Error::other(
                "its names fill more memory than is spent on them; given up",
            ));
        }
        let (directory, file) = path.rsplit_once('/').unwrap_or(("", &path));
        let change = match (file.strip_prefix(".wh."), entry.what) {
            (Some(".wh..opq"), _) => LayerChange::Empty(directory.to_owned()),
            (Some(removed), _) if !removed.starts_with(".wh.") => {
                let slash = if directory.is_empty() { "" } else { "/" };
                LayerChange::Remove(format!("{directory}{slash}{removed}"))
            }
            (_, EntryKind::Directory) => LayerChange::Directory(path),
            (_, EntryKind::HardLink(target)) => LayerChange::Link(path, target),
            (_, EntryKind::File) => {
                let judged = judge_entry(entries, entry.size, options)?;
                let judged = judged.unwrap_or_else(|why| {
                    note(layer, &path, &why);
                    None
                });
                *names += judged.as_ref().map_or(0, Judged::bytes);
                LayerChange::Put(path, judged.map(Arc::new))
            }
            (_, EntryKind::Sparse) => {
                note(layer, &path, "a sparse file; not judged");
                LayerChange::Put(path, None)
            }
            (_, EntryKind::Other) => LayerChange::Put(path, None),
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
    if !fastpath_code::elf::is_elf(&first) {
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
            LayerChange::Remove(path) => remove(files, path, true),
            LayerChange::Empty(directory) => remove(files, directory, false),
            _ => {}
        }
    }
    for change in &layer.changes {
        match change {
            LayerChange::Put(path, judged) => {
                remove(files, path, true);
                if let Some(judged) = judged {
                    files.insert(path, (judged.clone(), name));
                }
            }
            LayerChange::Directory(path) => {
                files.remove(path.as_str());
            }
            LayerChange::Link(path, target) => {
                let known = files.get(target.as_str()).cloned();
                remove(files, path, true);
                if let Some(known) = known {
                    files.insert(path, known);
                }
            }
            LayerChange::Remove(_) | LayerChange::Empty(_) => {}
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
