# An image in which driver and environments are there already: a machine made from it trains minutes after its launch.
#
#   deploy/build
#   packer init deploy/packer
#   packer build -only=finetuned.amazon-ebs.machine -var version=VERSION -var bundle=dist/finetuned-VERSION.tar.gz \
#     -var sha256=$(sha256sum <dist/finetuned-VERSION.tar.gz | cut -c1-64) \
#     -var base_image=ami-... -var region=eu-north-1 -var build_machine=m7i.2xlarge deploy/packer
#
# It runs the same finetuned-provision as a first boot, with --bake. No GPU is needed to build: the driver is for the
# machines to come. They still get a user-data of cloud-init/render, of the same release, and find its work done.

packer {
  required_version = ">= 1.9"

  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.2"
    }

    googlecompute = {
      source  = "github.com/hashicorp/googlecompute"
      version = ">= 1.1"
    }

    openstack = {
      source  = "github.com/hashicorp/openstack"
      version = ">= 1.1"
    }
  }
}

variable "bundle" {
  description = "The release bundle that deploy/build made."
  type        = string
}

variable "sha256" {
  description = "Of the bundle."
  type        = string
}

variable "version" {
  description = "Its version: the VERSION in finetuned-VERSION.tar.gz."
  type        = string
}

variable "base_image" {
  description = "Ubuntu 24.04, Debian 12 or 13: an AMI id, a Compute Engine image, an OpenStack image id."
  type        = string
}

variable "build_machine" {
  description = "Instance type, machine type or flavor to build on; it needs no GPU."
  type        = string
}

variable "user" {
  description = "The base image's own user."
  type        = string
  default     = "ubuntu"
}

variable "disk_gb" {
  description = "Root disk of the build: system and driver 20, environments 15, some room."
  type        = number
  default     = 60
}

variable "provision" {
  description = "More of /etc/finetuned/provision.json, such as driver_branch or python."
  type        = any
  default     = {}
}

variable "region" {
  description = "AWS: region."
  type        = string
  default     = ""
}

variable "root_device" {
  description = "AWS: root device of the base image; /dev/sda1 on Ubuntu, /dev/xvda on Debian."
  type        = string
  default     = "/dev/sda1"
}

variable "project" {
  description = "Compute Engine: project id."
  type        = string
  default     = ""
}

variable "zone" {
  description = "Compute Engine: zone."
  type        = string
  default     = ""
}

variable "cloud" {
  description = "OpenStack: name in clouds.yaml."
  type        = string
  default     = ""
}

variable "network_id" {
  description = "OpenStack: network from which the build machine can be reached."
  type        = string
  default     = ""
}

locals {
  image_name = "finetuned-${replace(var.version, ".", "-")}-${formatdate("YYYYMMDDhhmm", timestamp())}"
  bundle     = "/var/tmp/finetuned-${var.version}.tar.gz"

  settings = merge(
    { format = 1, gpu = "required", version = var.version, bundle = local.bundle, sha256 = var.sha256 },
    var.provision,
  )
}

source "amazon-ebs" "machine" {
  region        = var.region
  source_ami    = var.base_image
  instance_type = var.build_machine
  ami_name      = local.image_name
  imds_support  = "v2.0"

  metadata_options {
    http_endpoint = "enabled"
    http_tokens   = "required"
  }

  launch_block_device_mappings {
    device_name           = var.root_device
    volume_type           = "gp3"
    volume_size           = var.disk_gb
    delete_on_termination = true
  }

  ssh_username              = var.user
  ssh_clear_authorized_keys = true
}

source "googlecompute" "machine" {
  project_id   = var.project
  zone         = var.zone
  source_image = var.base_image
  machine_type = var.build_machine
  image_name   = local.image_name
  disk_size    = var.disk_gb

  ssh_username              = var.user
  ssh_clear_authorized_keys = true
}

source "openstack" "machine" {
  cloud        = var.cloud
  networks     = [var.network_id]
  source_image = var.base_image
  flavor       = var.build_machine
  image_name   = local.image_name

  ssh_username              = var.user
  ssh_clear_authorized_keys = true
}

build {
  name = "finetuned"

  sources = [
    "source.amazon-ebs.machine",
    "source.googlecompute.machine",
    "source.openstack.machine",
  ]

  provisioner "shell" {
    inline = ["cloud-init status --wait || [ $? -eq 2 ]"]
  }

  provisioner "file" {
    source      = var.bundle
    destination = local.bundle
  }

  provisioner "file" {
    source      = "${path.root}/../../cloud-init/finetuned-bootstrap"
    destination = "/var/tmp/finetuned-bootstrap"
  }

  provisioner "file" {
    content     = jsonencode(local.settings)
    destination = "/var/tmp/provision.json"
  }

  # The bundle, checked; then drivers and environments. Status 3: a new kernel has to be booted first.
  provisioner "shell" {
    execute_command  = "chmod +x {{ .Path }}; sudo env {{ .Vars }} {{ .Path }}"
    valid_exit_codes = [0, 3]

    inline = [
      "set -eu",
      "install -D -m 644 /var/tmp/provision.json /etc/finetuned/provision.json",
      "python3 /var/tmp/finetuned-bootstrap",
      "/opt/finetuned/bundles/current/cloud-init/finetuned-provision --bake",
    ]
  }

  provisioner "shell" {
    inline            = ["sudo systemctl reboot"]
    expect_disconnect = true
  }

  # Once more: what waited for the new kernel, and otherwise nothing but the checks.
  provisioner "shell" {
    pause_before    = "30s"
    execute_command = "chmod +x {{ .Path }}; sudo env {{ .Vars }} {{ .Path }}"
    inline          = ["exec /opt/finetuned/bundles/current/cloud-init/finetuned-provision --bake"]
  }

  # Last, because nothing that runs after it may leave a trace.
  provisioner "shell" {
    execute_command = "chmod +x {{ .Path }}; sudo env {{ .Vars }} {{ .Path }}"
    script          = "${path.root}/seal"
  }
}
