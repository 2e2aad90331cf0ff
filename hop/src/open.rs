//! `hop open`: a notebook in the user's Jupyter server, which JupyterHub starts if need be. The Hub itself is asked for
//! the user's name, the server's state and its address.

use crate::context::Context;
use crate::failure::Failure;
use crate::files;
use hop_words::error::chain;
use reqwest::{Client, RequestBuilder, Response, StatusCode, Url};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  hop open train.ipynb                          prints the address, once the server is up
  hop open --server deep-dive                   another server of yours
  hop open train.ipynb --option profile=large   as on the Hub's page

The Hub asks for a token (on its page: Token): in the file ~/.config/gresshopper/hub-token,
which nobody else may read, or in $JUPYTERHUB_API_TOKEN. Without one that may start servers
the address is of a page that signs you in and starts the server.";

/// The variable with the user's token. In a single-user server it has the server's own, which may start no server.
const TOKEN: &str = "JUPYTERHUB_API_TOKEN";
const TOKEN_FILE: &str = ".config/gresshopper/hub-token";

/// Most time for one answer of the Hub.
const ANSWERS: Duration = Duration::from_secs(30);

/// Open a notebook in your Jupyter server
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The notebook; default: the server's first page
    notebook: Option<PathBuf>,
    /// A named server; default: yours without a name
    #[arg(long, default_value = "", hide_default_value = true)]
    server: String,
    /// A choice of the Hub's page, if the server has to be started
    #[arg(long = "option", value_name = "NAME=VALUE", value_parser = pair)]
    options: Vec<(String, String)>,
    /// The Hub's address; default: the site's (`jupyterhub_url`)
    #[arg(long, value_name = "URL")]
    hub: Option<Url>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write it as NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn run(args: &Args, context: &mut Context<'_>) -> Result<(), Failure> {
    let home = (context.env)("HOME").map(PathBuf::from).unwrap_or_default();
    let path = args.notebook.as_deref().map(|n| below(n, &home)).transpose()?;
    let configured = || context.config.as_ref().and_then(|c| c.jupyterhub_url.as_deref());
    let hub = match (&args.hub, configured()) {
        (Some(hub), _) => hub.clone(),
        (None, Some(text)) => {
            Url::parse(text).map_err(|e| Failure::Failed(format!("jupyterhub_url is no address: {e}")))?
        }
        (None, None) => {
            let text = "where is the Hub? Say --hub URL; for everybody a site names it as jupyterhub_url in gresshopper.toml";
            return Err(Failure::Failed(text.to_owned()));
        }
    };
    let server = match token(context.env, &home)? {
        Some(token) => {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()?;
            let place = token.place;
            match runtime.block_on(Hub::new(&hub, token)?.server(args, context.err)) {
                Err(Problem::Token { status, .. }) if place == Place::Environment => {
                    writeln!(
                        context.err,
                        "hop: {hub} doesn't let ${TOKEN} do this ({status}), so this page signs you in and starts the \
                         server; a token of your own goes into ~/{TOKEN_FILE}"
                    )?;
                    sign_in(hub)
                }
                server => server?,
            }
        }
        None => {
            writeln!(
                context.err,
                "hop: there is no token, so this page signs you in and starts the server"
            )?;
            sign_in(hub)
        }
    };
    writeln!(context.out, "{}", page(&server, path.as_deref()))?;
    Ok(())
}

/// The Hub's page for signing in, leading on into the user's server.
fn sign_in(hub: Url) -> Url {
    ["hub", "user-redirect"]
        .iter()
        .fold(hub, |url, part| with(url, part))
}

/// The notebook's path below the home folder, which is the server's own root.
fn below(notebook: &Path, home: &Path) -> Result<PathBuf, Failure> {
    let shown = notebook.display();
    let found = notebook
        .canonicalize()
        .map_err(|e| Failure::Failed(format!("can't open {shown}: {e}")))?;
    let home = home.canonicalize().unwrap_or_else(|_| home.to_owned());
    let path = found.strip_prefix(&home).map(Path::to_owned);
    path.map_err(|_| {
        Failure::Failed(format!(
            "{shown} isn't in your home folder, where your Jupyter server looks for notebooks"
        ))
    })
}

/// A token, and the place that it was found at.
struct Token {
    text: String,
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    File,
    Environment,
}

/// The most bytes of a token's file.
const MOST: u64 = 1 << 20;

fn token(env: fn(&str) -> Option<String>, home: &Path) -> Result<Option<Token>, Failure> {
    let file = home.join(TOKEN_FILE);
    let Ok(info) = file.metadata() else {
        let text = env(TOKEN).filter(|t| !t.is_empty());
        let place = Place::Environment;
        return Ok(text.map(|text| Token { text, place }));
    };
    let shown = file.display();
    if info.mode() & 0o077 != 0 {
        let text = format!("others may read {shown}: `chmod 600` it, and make a new token on the Hub's page");
        return Err(Failure::Failed(text));
    }
    let text =
        files::read_text(&file, MOST).map_err(|e| Failure::Failed(format!("can't read {shown}: {e}")))?;
    Ok(Some(Token {
        text: text.trim().to_owned(),
        place: Place::File,
    }))
}

/// The address of JupyterLab at that notebook.
fn page(server: &Url, path: Option<&Path>) -> Url {
    let lab = with(server.clone(), "lab");
    let Some(path) = path else {
        return lab;
    };
    let parts = path.components().map(|part| part.as_os_str().to_string_lossy());
    parts.fold(with(lab, "tree"), |url, part| with(url, &part))
}

/// The address with another part in its path.
fn with(mut url: Url, part: &str) -> Url {
    if let Ok(mut parts) = url.path_segments_mut() {
        parts.pop_if_empty().push(part);
    }
    url
}

/// What the Hub says of a user.
#[derive(Debug, Deserialize)]
struct User {
    name: String,
    #[serde(default)]
    servers: BTreeMap<String, Server>,
}

#[derive(Debug, Deserialize)]
struct Server {
    ready: bool,
    /// `/user/alice/`, below the Hub's own prefix.
    #[serde(default)]
    url: String,
}

/// A line of the Hub's news of a start.
#[derive(Debug, Default, Deserialize)]
struct Progress {
    #[serde(default)]
    message: String,
    #[serde(default)]
    ready: bool,
    #[serde(default)]
    failed: bool,
}

/// The way to a server failed.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{hub} doesn't take the token ({status}): make a new one on its page, for ~/{TOKEN_FILE}")]
    Token { hub: Url, status: StatusCode },
    #[error(transparent)]
    Other(#[from] Failure),
}

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        match problem {
            Problem::Other(failure) => failure,
            token @ Problem::Token { .. } => Self::Failed(token.to_string()),
        }
    }
}

/// JupyterHub, as this user.
struct Hub {
    client: Client,
    url: Url,
    token: String,
}

impl Hub {
    fn new(url: &Url, token: Token) -> Result<Self, Failure> {
        hop_remote::open::one_tls_provider();
        let client = Client::builder().connect_timeout(ANSWERS).build();
        let client = client.map_err(|e| Failure::of(&e))?;
        let url = url.clone();
        let token = token.text;
        Ok(Self { client, url, token })
    }

    /// The address of the server. A missing server is started.
    async fn server(&self, args: &Args, err: &mut dyn Write) -> Result<Url, Problem> {
        let user = self.user().await?;
        if let Some(server) = user.servers.get(&args.server).filter(|s| s.ready) {
            return Ok(self.address(server)?);
        }
        if !user.servers.contains_key(&args.server) {
            self.start(&user.name, args).await?;
        }
        self.follow(&user.name, &args.server, err).await?;
        let user = self.user().await?;
        match user.servers.get(&args.server).filter(|s| s.ready) {
            Some(server) => Ok(self.address(server)?),
            None => Err(Problem::Other(Failure::Failed(format!(
                "the server has ended again: {} says more",
                self.at(&["hub", "home"])
            )))),
        }
    }

    async fn user(&self) -> Result<User, Problem> {
        let url = self.at(&["hub", "api", "user"]);
        let text = self.ask(self.client.get(url).timeout(ANSWERS)).await?;
        let text = text.text().await.map_err(|e| self.silent(&e))?;
        let user = serde_json::from_str(&text);
        Ok(user.map_err(|_| Failure::Failed(format!("{} is no JupyterHub", self.url)))?)
    }

    async fn start(&self, user: &str, args: &Args) -> Result<(), Problem> {
        let options: Map<String, Value> = args
            .options
            .iter()
            .map(|(name, value)| (name.clone(), value.as_str().into()))
            .collect();
        let url = self.of_server(user, &args.server);
        let body = Value::from(options).to_string();
        let request = self.client.post(url).timeout(ANSWERS).body(body);
        self.ask(request).await.map(drop)
    }

    /// Tells what the start waits for, until the server is up.
    async fn follow(&self, user: &str, server: &str, err: &mut dyn Write) -> Result<(), Problem> {
        let url = with(self.of_server(user, server), "progress");
        let mut news = self.ask(self.client.get(url)).await?;
        let (mut unread, mut said) = (String::new(), String::new());
        while let Some(chunk) = news.chunk().await.map_err(|e| self.silent(&e))? {
            unread.push_str(&String::from_utf8_lossy(&chunk));
            while let Some((line, rest)) = unread.split_once('\n') {
                let progress = line
                    .strip_prefix("data:")
                    .map(|json| serde_json::from_str(json.trim()));
                let progress: Progress = progress.and_then(Result::ok).unwrap_or_default();
                unread = rest.to_owned();
                if progress.failed {
                    return Err(Failure::Failed(progress.message).into());
                }
                if progress.ready {
                    return Ok(());
                }
                if !progress.message.is_empty() && progress.message != said {
                    writeln!(err, "hop: {}", progress.message).map_err(Failure::from)?;
                    said = progress.message;
                }
            }
        }
        Ok(())
    }

    /// The Hub's answer; a refusal is a failure in its own words.
    async fn ask(&self, request: RequestBuilder) -> Result<Response, Problem> {
        let request = request.header("Authorization", format!("token {}", self.token));
        let response = request.send().await.map_err(|e| self.silent(&e))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        if matches!(status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) {
            let hub = self.url.clone();
            return Err(Problem::Token { hub, status });
        }
        let text = response.text().await.unwrap_or_default();
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        let why = said["message"]
            .as_str()
            .map_or_else(|| status.to_string(), str::to_owned);
        Err(Failure::Failed(format!("{} refuses: {why}", self.url)).into())
    }

    fn silent(&self, error: &reqwest::Error) -> Failure {
        Failure::Failed(format!("{} doesn't answer: {}", self.url, chain(error)))
    }

    fn address(&self, server: &Server) -> Result<Url, Failure> {
        // Its path has the Hub's prefix already.
        let url = self.url.join(&server.url);
        url.map_err(|e| Failure::Failed(format!("the Hub names no address of the server: {e}")))
    }

    fn of_server(&self, user: &str, server: &str) -> Url {
        let users = self.at(&["hub", "api", "users", user]);
        match server {
            "" => with(users, "server"),
            name => with(with(users, "servers"), name),
        }
    }

    fn at(&self, parts: &[&str]) -> Url {
        parts.iter().fold(self.url.clone(), |url, part| with(url, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead, BufReader, Read};
    use std::net::TcpListener;

    /// A stand-in for the Hub at the process boundary: one answer for each request, in their order. Returns the
    /// requests.
    fn hub(answers: Vec<(&'static str, &'static str)>) -> (Url, std::thread::JoinHandle<Vec<String>>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}/jupyter/", listener.local_addr().unwrap());
        let asked = std::thread::spawn(move || {
            answers
                .into_iter()
                .map(|(status, body)| {
                    let (mut stream, _) = listener.accept().unwrap();
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let mut head = String::new();
                    while !head.ends_with("\r\n\r\n") {
                        reader.read_line(&mut head).unwrap();
                    }
                    assert!(head.contains("authorization: token s3cret"), "{head}");
                    let length = head.lines().find_map(|l| l.strip_prefix("content-length: "));
                    let mut sent = vec![0; length.map_or(0, |l| l.parse().unwrap())];
                    reader.read_exact(&mut sent).unwrap();
                    let length = body.len();
                    write!(
                        stream,
                        "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                    )
                    .unwrap();
                    let line = head.lines().next().unwrap().replace(" HTTP/1.1", "");
                    format!("{line} {}", String::from_utf8(sent).unwrap())
                        .trim()
                        .to_owned()
                })
                .collect()
        });
        (url.parse().unwrap(), asked)
    }

    fn opened(answers: Vec<(&'static str, &'static str)>, args: &Args) -> (String, String, Vec<String>) {
        let (url, asked) = hub(answers);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        let mut err = Vec::new();
        let token = Token {
            text: "s3cret".into(),
            place: Place::File,
        };
        let hub = Hub::new(&url, token).unwrap();
        let server = runtime.block_on(hub.server(args, &mut err));
        let found = match server {
            Ok(server) => page(&server, Some(Path::new("work/a b.ipynb"))).to_string(),
            Err(failure) => failure.to_string(),
        };
        let plain = |text: String| text.replace(url.as_str(), "HUB/");
        (
            plain(found),
            plain(String::from_utf8(err).unwrap()),
            asked.join().unwrap(),
        )
    }

    fn args(server: &str, options: &[(&str, &str)]) -> Args {
        Args {
            notebook: None,
            server: server.to_owned(),
            options: options
                .iter()
                .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
                .collect(),
            hub: None,
        }
    }

    const OURS: &str = r#"{"name": "al@x", "servers": {"": {"ready": true, "url": "/jupyter/user/al@x/"}}}"#;
    const NONE: &str = r#"{"name": "al@x", "servers": {}}"#;

    #[test]
    fn a_server_that_is_up_is_asked_for_and_no_more() {
        let (found, err, asked) = opened(vec![("200 OK", OURS)], &args("", &[]));
        assert_eq!(found, "HUB/user/al@x/lab/tree/work/a%20b.ipynb");
        assert_eq!(
            (err.as_str(), asked),
            ("", vec!["GET /jupyter/hub/api/user".to_owned()])
        );
    }

    #[test]
    fn a_server_that_isnt_there_is_started_as_chosen_and_its_wait_is_told() {
        let progress = "data: {\"progress\": 30, \"message\": \"Job 7 waits: no node has room yet\"}\n\n\
            data: {\"progress\": 30, \"message\": \"Job 7 waits: no node has room yet\"}\n\n\
            data: {\"progress\": 100, \"ready\": true, \"message\": \"up\"}\n\n";
        let deep =
            r#"{"name": "al@x", "servers": {"deep": {"ready": true, "url": "/jupyter/user/al@x/deep/"}}}"#;
        let answers = vec![
            ("200 OK", NONE),
            ("202 Accepted", ""),
            ("200 OK", progress),
            ("200 OK", deep),
        ];
        let (found, err, asked) = opened(answers, &args("deep", &[("profile", "large")]));
        assert_eq!(found, "HUB/user/al@x/deep/lab/tree/work/a%20b.ipynb");
        assert_eq!(err, "hop: Job 7 waits: no node has room yet\n");
        assert_eq!(
            asked[1..3],
            [
                r#"POST /jupyter/hub/api/users/al@x/servers/deep {"profile":"large"}"#,
                "GET /jupyter/hub/api/users/al@x/servers/deep/progress"
            ]
        );
    }

    #[test]
    fn what_the_hub_refuses_is_said_in_its_words() {
        let refused = r#"{"status": 400, "message": "there is no profile 'gone' here"}"#;
        let answers = vec![("200 OK", NONE), ("400 Bad Request", refused)];
        let (found, ..) = opened(answers, &args("", &[("profile", "gone")]));
        assert_eq!(found, "HUB/ refuses: there is no profile 'gone' here");
        let (found, ..) = opened(vec![("403 Forbidden", "{}")], &args("", &[]));
        assert!(found.contains("doesn't take the token"), "{found}");
        let failed = "data: {\"failed\": true, \"message\": \"Spawn failed: Slurm did not take it\"}\n\n";
        let answers = vec![("200 OK", NONE), ("202 Accepted", ""), ("200 OK", failed)];
        let (found, ..) = opened(answers, &args("", &[]));
        assert_eq!(found, "Spawn failed: Slurm did not take it");
        let (found, ..) = opened(vec![("200 OK", "<html>")], &args("", &[]));
        assert_eq!(found, "HUB/ is no JupyterHub");
    }

    #[test]
    fn a_notebook_is_below_the_home_folder_and_a_token_is_private() {
        let home = tempfile::tempdir().unwrap();
        let work = home.path().join("work");
        std::fs::create_dir(&work).unwrap();
        std::fs::write(work.join("a.ipynb"), "").unwrap();
        assert_eq!(
            below(&work.join("a.ipynb"), home.path()).unwrap(),
            Path::new("work/a.ipynb")
        );
        assert!(below(Path::new("/etc/passwd"), home.path()).is_err());
        let file = home.path().join(TOKEN_FILE);
        let ours = |env: fn(&str) -> Option<String>| {
            let found = token(env, home.path());
            found.map(|found| found.map(|t| (t.text, t.place)))
        };
        assert_eq!(ours(|_| None).unwrap(), None);
        let environments = Some(("env".to_owned(), Place::Environment));
        assert_eq!(ours(|_| Some("env".into())).unwrap(), environments);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, "abc\n").unwrap();
        let mode = <std::fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode;
        std::fs::set_permissions(&file, mode(0o644)).unwrap();
        assert!(ours(|_| None).is_err());
        std::fs::set_permissions(&file, mode(0o600)).unwrap();
        let own = Some(("abc".to_owned(), Place::File));
        // A server's terminal has the server's own token, which may do less.
        assert_eq!(ours(|_| Some("env".into())).unwrap(), own);
    }
}
