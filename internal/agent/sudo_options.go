package agent

import "strings"

// parseSudo reads options, assignments, then the command. The first word that
// is neither ends the options, as does "--".
func parseSudo(args []string) (*sudoOptions, error) {
	p := &sudoParser{args: args, o: &sudoOptions{}}
	for len(p.args) > 0 {
		arg := p.args[0]
		if arg == "--" {
			p.args = p.args[1:]
			break
		}
		var err error
		switch {
		case strings.HasPrefix(arg, "--"):
			p.args = p.args[1:]
			err = p.long(arg[2:])
		case len(arg) > 1 && arg[0] == '-':
			p.args = p.args[1:]
			err = p.short(arg[1:])
		default:
			if !isAssignment(arg) {
				return p.finish()
			}
			p.o.assignments = append(p.o.assignments, arg)
			p.args = p.args[1:]
		}
		if err != nil {
			return nil, err
		}
	}
	for len(p.args) > 0 && isAssignment(p.args[0]) {
		p.o.assignments = append(p.o.assignments, p.args[0])
		p.args = p.args[1:]
	}
	return p.finish()
}

type sudoParser struct {
	args []string
	o    *sudoOptions
}

func (p *sudoParser) finish() (*sudoOptions, error) {
	p.o.commandLine = p.args
	if p.o.login && p.o.shell {
		return nil, usagef("you may not specify both -i and -s")
	}
	if p.o.login && p.o.preserveEnv {
		return nil, usagef("you may not specify both -i and -E")
	}
	if p.o.edit && (p.o.login || p.o.shell || p.o.background || p.o.list || len(p.args) == 0) {
		return nil, usagef("-e takes files, and none of -b, -i, -l and -s")
	}
	return p.o, nil
}

// isAssignment accepts NAME=value, not a path that contains an equals sign.
func isAssignment(arg string) bool {
	name, _, ok := strings.Cut(arg, "=")
	return ok && name != "" && !strings.ContainsAny(name, "/ ") && name[0] != '-'
}

// sudoLong maps long options to short ones.
var sudoLong = map[string]byte{
	"user": 'u', "group": 'g', "preserve-env": 'E', "set-home": 'H', "non-interactive": 'n',
	"stdin": 'S', "login": 'i', "shell": 's', "reset-timestamp": 'k', "remove-timestamp": 'K',
	"validate": 'v', "list": 'l', "version": 'V', "help": 'h', "prompt": 'p', "chdir": 'D',
	"preserve-groups": 'P', "askpass": 'A', "bell": 'B', "close-from": 'C',
	"command-timeout": 'T', "host": 'O', "background": 'b', "edit": 'e',
}

// sudoTakesValue holds the options that are followed by a value.
const sudoTakesValue = "ugpDCT"

func (p *sudoParser) long(option string) error {
	name, value, hasValue := strings.Cut(option, "=")
	if name == "preserve-env" && hasValue {
		p.o.preserve = append(p.o.preserve, strings.Split(value, ",")...)
		return nil
	}
	flag, ok := sudoLong[name]
	if !ok || flag == 'O' {
		return usagef("unrecognized option '--%s'", name)
	}
	if strings.IndexByte(sudoTakesValue, flag) < 0 {
		if hasValue {
			return usagef("option '--%s' takes no value", name)
		}
		return p.set(flag, "")
	}
	if !hasValue {
		var err error
		if value, err = p.next("--" + name); err != nil {
			return err
		}
	}
	return p.set(flag, value)
}

// short reads a cluster such as "nEu" or "uuser".
func (p *sudoParser) short(cluster string) error {
	for i := 0; i < len(cluster); i++ {
		flag := cluster[i]
		if strings.IndexByte(sudoTakesValue, flag) < 0 {
			if err := p.set(flag, ""); err != nil {
				return err
			}
			continue
		}
		value := cluster[i+1:]
		if value == "" {
			var err error
			if value, err = p.next("-" + string(flag)); err != nil {
				return err
			}
		}
		return p.set(flag, value)
	}
	return nil
}

func (p *sudoParser) next(option string) (string, error) {
	if len(p.args) == 0 {
		return "", usagef("option '%s' needs a value", option)
	}
	value := p.args[0]
	p.args = p.args[1:]
	return value, nil
}

func (p *sudoParser) set(flag byte, value string) error {
	switch flag {
	case 'u':
		p.o.user = value
	case 'g':
		p.o.group = value
	case 'D':
		p.o.dir = value
	case 'E':
		p.o.preserveEnv = true
	case 'P':
		p.o.keepGroups = true
	case 'H':
		p.o.setHome = true
	case 'i':
		p.o.login = true
	case 's':
		p.o.shell = true
	case 'k', 'K':
		p.o.forget = true
	case 'v':
		p.o.validate = true
	case 'l':
		p.o.list = true
	case 'V':
		p.o.version = true
	case 'h':
		p.o.help = true
	case 'b':
		p.o.background = true
	case 'e':
		p.o.edit = true
	case 'n', 'S', 'A', 'B', 'p', 'C', 'T':
		// About passwords, which are never asked for, and limits.
	default:
		return usagef("invalid option -- '%c'", flag)
	}
	return nil
}
