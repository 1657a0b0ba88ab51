// Cluster runs three NATS servers and two hubs over them on this machine, each
// in a process of its own, for a person to try what happens when some of them
// die.
//
//	cluster [-promethean PROGRAM] [-nodes 3] [-hubs 127.0.0.1:7070,127.0.0.1:7071] [-dir DIR]
//
// It says where the hubs are, what can be tried and which process is which. A
// process that has ended is started again in its place by pressing Enter. Ctrl-C
// ends them all, the hubs first, and removes their data unless -dir names a
// directory for it.
//
// The address of the servers, as a hub takes it, is also in the file url of that
// directory.
//
// If it is killed itself, a process that waits for that ends the others.
//
// Servers listen on loopback alone, on ports that are free, and sync every
// message before they acknowledge it.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "node" {
		if err := runNode(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "cluster:", err)
			os.Exit(1)
		}
		return
	}
	if len(os.Args) > 1 && os.Args[1] == "heir" {
		inherit(os.Stdin)
		return
	}
	// Who looks at our output may go before we do.
	signal.Ignore(syscall.SIGPIPE)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// startTimeout bounds how long a process may take to be ready.
const startTimeout = time.Minute

// cluster is all that runs.
type cluster struct {
	out   io.Writer
	dir   string
	parts []*part // nodes, then hubs
	ended chan *part
	heir  *heir
}

// part is one process.
type part struct {
	name  string
	args  func() []string
	dir   string
	ready string // what a line of its standard output begins with once it is ready
	line  string // that line
	hub   bool

	mu    sync.Mutex
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{} // closed when the process has ended
}

func run(ctx context.Context, args []string, in io.Reader, out io.Writer) (err error) {
	flags := flag.NewFlagSet("cluster", flag.ContinueOnError)
	program := flags.String("promethean", "promethean", "the program that the hubs run")
	nodes := flags.Int("nodes", 3, "how many NATS servers to run")
	hubs := flags.String("hubs", "127.0.0.1:7070,127.0.0.1:7071", "where the hubs listen; none if empty")
	dir := flags.String("dir", "", "directory for all data, which stays (default: one that is removed at the end)")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 || *nodes < 1 || *nodes > 9 {
		return errors.New("it takes no arguments, and from 1 to 9 nodes")
	}
	c := &cluster{out: out, dir: *dir, ended: make(chan *part, 16)}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "promethean-cluster-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(c.dir)) }()
	}
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	url, err := c.plan(*nodes, *program, *hubs)
	if err != nil {
		return err
	}
	if c.heir, err = newHeir(); err != nil {
		return err
	}
	defer c.heir.close()
	defer c.stop()
	for _, group := range [][]*part{c.parts[:*nodes], c.parts[*nodes:]} {
		if err := c.start(ctx, group); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(c.dir, "url"), []byte(url+"\n"), 0o644); err != nil {
		return err
	}
	c.explain(url)
	c.watch(ctx, in)
	fmt.Fprintln(out, "ending …")
	return nil
}

// plan says what is to run, and gives the address of the servers.
func (c *cluster) plan(nodes int, program, hubs string) (url string, err error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	// Each process has a directory of its own.
	if program, err = exec.LookPath(program); err == nil {
		program, err = filepath.Abs(program)
	}
	if err != nil && hubs != "" {
		return "", err
	}
	ports, err := freePorts(2 * nodes)
	if err != nil {
		return "", err
	}
	clients, routes := ports[:nodes], ports[nodes:]
	for i := range nodes {
		name := fmt.Sprintf("node-%d", i+1)
		dir := filepath.Join(c.dir, name)
		args := []string{self, "node", "-name", name, "-port", clients[i], "-dir", dir}
		if nodes > 1 {
			args = append(args, "-route", routes[i], "-routes", strings.Join(routes, ","))
		}
		c.parts = append(c.parts, &part{name: name, dir: dir, ready: "ready", args: func() []string { return args }})
	}
	url = "nats://127.0.0.1:" + strings.Join(clients, ",127.0.0.1:")
	for i, listen := range strings.FieldsFunc(hubs, func(r rune) bool { return r == ',' }) {
		p := &part{name: fmt.Sprintf("hub-%d", i+1), dir: filepath.Join(c.dir, fmt.Sprintf("hub-%d", i+1)), ready: "promethean ready on ", hub: true}
		p.args = func() []string {
			if at := p.address(); at != "" {
				listen = strings.TrimPrefix(at, "http://")
			}
			return []string{program, "serve", "--listen", listen, "--store", url}
		}
		c.parts = append(c.parts, p)
	}
	return url, nil
}

// freePorts gives ports of loopback that nobody listens on.
func freePorts(n int) (ports []string, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }() // together: no port is given twice
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports = append(ports, port)
	}
	return ports, nil
}

// address is where a hub that is ready listens.
func (p *part) address() string {
	fields := strings.Fields(strings.TrimPrefix(p.line, p.ready))
	if !p.hub || len(fields) == 0 {
		return ""
	}
	return fields[0]
}

// start starts processes together, and returns once all are ready: servers of a
// cluster are so only when they have found each other.
func (c *cluster) start(ctx context.Context, parts []*part) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errors.New("it is not ready in time"))
	defer cancel()
	waits := make([]<-chan string, len(parts))
	for i, p := range parts {
		var err error
		if waits[i], err = c.launch(p); err != nil {
			return fmt.Errorf("start %s: %w", p.name, err)
		}
	}
	for i, p := range parts {
		select {
		case line, ok := <-waits[i]:
			if !ok {
				return fmt.Errorf("%s has ended before it was ready; %s says why", p.name, filepath.Join(p.dir, "log"))
			}
			p.line = line
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", p.name, context.Cause(ctx))
		}
	}
	return nil
}

// launch starts a process. The channel gives the line that says that it is
// ready, and is closed when its output ends.
func (c *cluster) launch(p *part) (<-chan string, error) {
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(p.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	args := p.args()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir, cmd.Stderr = p.dir, log
	// Ctrl-C is for this process alone: it ends the others in order.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(err, stdin.Close(), log.Close())
	}
	done, ready := make(chan struct{}), make(chan string, 1)
	p.mu.Lock()
	p.cmd, p.stdin, p.done = cmd, stdin, done
	p.mu.Unlock()
	c.heir.tell("+", cmd.Process.Pid)
	go func() {
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if strings.HasPrefix(lines.Text(), p.ready) {
				select {
				case ready <- lines.Text():
				default:
				}
			}
		}
		close(ready)
		c.heir.tell("-", cmd.Process.Pid)
		_ = cmd.Wait() // how it ended is of no interest
		_, _ = stdin.Close(), log.Close()
		close(done)
		select {
		case c.ended <- p:
		default:
		}
	}()
	return ready, nil
}

func (p *part) running() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cmd == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func (p *part) pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// explain says what there is and what to try.
func (c *cluster) explain(url string) {
	fmt.Fprintf(c.out, "servers  %s\n", url)
	var hubs []string
	for _, p := range c.parts {
		fmt.Fprintf(c.out, "%-8s process %d", p.name, p.pid())
		if at := p.address(); at != "" {
			hubs = append(hubs, at)
			fmt.Fprintf(c.out, ", %s", at)
		}
		fmt.Fprintln(c.out)
	}
	fmt.Fprintf(c.out, "data and logs are in %s\n", c.dir)
	if len(hubs) > 1 {
		fmt.Fprintf(c.out, `
Publish at one hub, consume at the other:
  promethean --addr %[1]s pub process.state '{"status":"up"}' --key dev:stt:1
  promethean --addr %[2]s sub process.state --group mailer --from earliest

Kill a server, or the hub that nobody looks at, and go on publishing:
  kill -9 %[3]d
`, hubs[0], hubs[1], c.parts[0].pid())
	}
	fmt.Fprintln(c.out, "\nEnter starts what has ended again, Ctrl-C ends all.")
}

// watch tells what ends and starts it again when asked to, until ctx ends.
func (c *cluster) watch(ctx context.Context, in io.Reader) {
	enter := make(chan struct{})
	go func() { // it ends with the process: a read of a terminal cannot be given up
		for lines := bufio.NewScanner(in); lines.Scan(); {
			select {
			case enter <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-c.ended:
			fmt.Fprintf(c.out, "%s has ended\n", p.name)
		case <-enter:
			for _, p := range c.parts {
				if p.running() {
					continue
				}
				if err := c.start(ctx, []*part{p}); err != nil {
					fmt.Fprintln(c.out, err)
					continue
				}
				fmt.Fprintf(c.out, "%-8s process %d\n", p.name, p.pid())
			}
		}
	}
}

// stop ends everything, the hubs first, so that they can finish their work.
func (c *cluster) stop() {
	var hubs, nodes []*part
	for _, p := range c.parts {
		if p.hub {
			hubs = append(hubs, p)
		} else {
			nodes = append(nodes, p)
		}
	}
	for _, parts := range [][]*part{hubs, nodes} {
		var wg sync.WaitGroup
		for _, p := range parts {
			if p.running() {
				wg.Go(p.end)
			}
		}
		wg.Wait()
	}
}

// end asks the process to end, and makes it after a while.
func (p *part) end() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	late := time.AfterFunc(15*time.Second, func() { _ = p.cmd.Process.Kill() })
	<-p.done
	late.Stop()
}
