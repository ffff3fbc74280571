//! The plugin: registers with the runtime, and answers its calls. Each call is answered at once: a runtime closes the
//! connection to a plugin that takes longer than two seconds.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{FromRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use prost::Message;

use crate::annotation::{Wish, wish};
use crate::attaching::{Attendant, Candidate, Program};
use crate::connection::{Arrived, Connection};
use crate::log::{say, stays};
use crate::messages::{
    ConfigureRequest, ConfigureResponse, Container, CreateContainerRequest, CreateContainerResponse, Event, PodSandbox,
    RUNNING, RegisterPluginRequest, StateChangeEvent, SynchronizeRequest, SynchronizeResponse,
};
use crate::options::{Method, PluginOptions};
use crate::preload::adjustment;

const NAME: &str = "fastpath";
const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
/// Time between two attempts to connect to the runtime.
const CONNECT_EVERY: Duration = Duration::from_secs(1);

/// Where the runtime is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeSocket {
    /// The runtime started this program, and connected it at this descriptor.
    Connected(RawFd),
    /// The runtime listens at this socket.
    Listens(PathBuf),
}

/// Serves the runtime until it closes the connection to a plugin that it started; for ever, if the plugin has connected
/// itself. `index` is the plugin's place among other plugins.
pub fn run(socket: &RuntimeSocket, index: &str, options: &PluginOptions) -> Result<(), String> {
    let attendant = Attendant::start().map_err(|error| format!("a thread: {error}"))?;
    let serve = |socket: UnixStream| {
        let mut plugin = Plugin {
            options: options.clone(),
            attendant: &attendant,
            pods: HashMap::new(),
            containers: Vec::new(),
            begun: HashSet::new(),
        };
        plugin.serve(Connection::over(socket), index)
    };
    match socket {
        RuntimeSocket::Connected(fd) => {
            // SAFETY: fcntl takes integers. The programs that this one may start must not keep the connection.
            if unsafe { libc::fcntl(*fd, libc::F_SETFD, libc::FD_CLOEXEC) } != 0 {
                return Err(format!(
                    "descriptor {fd} of the runtime: {}",
                    io::Error::last_os_error()
                ));
            }
            // SAFETY: the descriptor is open, and the runtime has passed it to this program for this use.
            serve(unsafe { UnixStream::from_raw_fd(*fd) })
        }
        RuntimeSocket::Listens(path) => {
            let mut reported = None;
            loop {
                let ended = match UnixStream::connect(path) {
                    Ok(socket) => {
                        reported = None;
                        serve(socket)
                            .err()
                            .unwrap_or_else(|| "the runtime closed the connection".into())
                    }
                    Err(error) => format!("no runtime with NRI listens at {}: {error}", path.display()),
                };
                if reported.as_ref() != Some(&ended) {
                    say(&format!("{ended}; trying again"));
                    reported = Some(ended);
                }
                std::thread::sleep(CONNECT_EVERY);
            }
        }
    }
}

struct Plugin<'a> {
    options: PluginOptions,
    attendant: &'a Attendant,
    /// Pods and containers of a synchronization that comes in parts.
    pods: HashMap<String, PodSandbox>,
    containers: Vec<Container>,
    /// Containers that are being started.
    begun: HashSet<String>,
}

impl Plugin<'_> {
    fn serve(&mut self, mut connection: Connection<UnixStream>, index: &str) -> Result<(), String> {
        let broken = |error: io::Error| format!("the connection to the runtime: {error}");
        let registration = RegisterPluginRequest {
            plugin_name: NAME.into(),
            plugin_idx: index.into(),
        };
        connection
            .call(RUNTIME_SERVICE, "RegisterPlugin", &registration)
            .map_err(broken)?;
        while let Some(arrived) = connection.next().map_err(broken)? {
            match arrived {
                Arrived::Call(stream, call) => {
                    let answer = self.answer(&call.method, &call.payload);
                    let answer = answer.map_err(|error| format!("{} of the runtime: {error}", call.method))?;
                    connection.answer(stream, answer).map_err(broken)?;
                }
                Arrived::Answer(answer) => match answer.status {
                    Some(status) if status.code != 0 => {
                        return Err(format!("the runtime refuses this plugin: {}", status.message));
                    }
                    _ => {}
                },
            }
        }
        Ok(())
    }

    /// Returns the answer to a call; `None`: there is no such call.
    fn answer(&mut self, method: &str, payload: &[u8]) -> Result<Option<Vec<u8>>, prost::DecodeError> {
        Ok(Some(match method {
            "Configure" => self.configure(&ConfigureRequest::decode(payload)?).encode_to_vec(),
            "Synchronize" => self.synchronize(SynchronizeRequest::decode(payload)?).encode_to_vec(),
            "CreateContainer" => self.create(CreateContainerRequest::decode(payload)?).encode_to_vec(),
            "StateChange" => {
                self.state_change(StateChangeEvent::decode(payload)?);
                Vec::new()
            }
            // Messages without contents.
            "UpdateContainer" | "StopContainer" | "Shutdown" => Vec::new(),
            _ => return Ok(None),
        }))
    }

    fn configure(&mut self, request: &ConfigureRequest) -> ConfigureResponse {
        match self.options.changed_by(&request.config) {
            Ok(options) => self.options = options,
            Err(why) => say(&format!(
                "the runtime's configuration of this plugin has no effect: {why}"
            )),
        }
        say(&format!("serving {} {}", request.runtime_name, request.runtime_version));
        let events = [Event::CreateContainer, Event::StartContainer, Event::PostStartContainer];
        ConfigureResponse {
            events: events
                .into_iter()
                .fold(0, |events, event| events | 1 << (event as i32 - 1)),
        }
    }

    /// Serves the containers that run already. They keep the environment and the mounts that they were created with.
    fn synchronize(&mut self, request: SynchronizeRequest) -> SynchronizeResponse {
        let more = request.more;
        self.pods
            .extend(request.pods.into_iter().map(|pod| (pod.id.clone(), pod)));
        self.containers.extend(request.containers);
        if !more {
            let pods = std::mem::take(&mut self.pods);
            for container in std::mem::take(&mut self.containers) {
                let pod = pods.get(&container.pod_sandbox_id);
                if container.state == RUNNING
                    && let Some(pod) = pod
                    && let Some(wish) = self.wish(pod, &container)
                {
                    self.attach(pod, &container, wish, None);
                }
            }
        }
        SynchronizeResponse { more }
    }

    fn create(&self, request: CreateContainerRequest) -> CreateContainerResponse {
        let none = CreateContainerResponse { adjust: None };
        let (Some(pod), Some(container)) = (request.pod, request.container) else {
            return none;
        };
        let Some(wish) = self
            .wish(&pod, &container)
            .filter(|wish| wish.method == Method::Preload)
        else {
            return none;
        };
        match adjustment(&container, wish.clocks, &self.options) {
            Ok(adjust) => {
                if adjust.is_some() {
                    say(&format!(
                        "{}: libfastpath-preload.so is loaded",
                        name_of(&pod, &container)
                    ));
                }
                CreateContainerResponse { adjust }
            }
            Err(why) => {
                stays(&name_of(&pod, &container), &why);
                none
            }
        }
    }

    fn state_change(&mut self, change: StateChangeEvent) {
        let event = change.event();
        let (Some(pod), Some(container)) = (change.pod, change.container) else {
            return;
        };
        let is_begun = match event {
            // Before the runtime lets the process execute the container's program.
            Event::StartContainer => false,
            Event::PostStartContainer => self.begun.remove(&container.id),
            _ => return,
        };
        if is_begun {
            return;
        }
        // A mistake was logged when the container was created.
        let Ok(Some(wish)) = wish(&pod.annotations, &container.name, self.options.method) else {
            return;
        };
        if event == Event::StartContainer {
            // A runtime that does not name the process yet names it after the start.
            if let Some(program) = Program::read(container.pid as i32).filter(|_| container.pid > 0) {
                self.begun.insert(container.id.clone());
                self.attach(&pod, &container, wish, Some(program));
            }
        } else {
            self.attach(&pod, &container, wish, None);
        }
    }

    fn attach(&self, pod: &PodSandbox, container: &Container, wish: Wish, before: Option<Program>) {
        if wish.method != Method::Attach || container.pid == 0 {
            return;
        }
        let name = name_of(pod, container);
        match Candidate::new(name.clone(), container.pid as i32, wish.clocks, before) {
            Ok(candidate) => self.attendant.take(candidate, &self.options.socket),
            Err(error) => stays(&name, &format_args!("process {}: {error}", container.pid)),
        }
    }

    fn wish(&self, pod: &PodSandbox, container: &Container) -> Option<Wish> {
        wish(&pod.annotations, &container.name, self.options.method).unwrap_or_else(|why| {
            stays(&name_of(pod, container), &why);
            None
        })
    }
}

/// Returns a container's name for the log.
fn name_of(pod: &PodSandbox, container: &Container) -> String {
    format!("container {}/{}/{}", pod.namespace, pod.name, container.name)
}
