# One EC2 instance that provisions itself from a user-data of cloud-init/render.
#
#   cloud-init/render --hook aws --release URL --bundle dist/finetuned-VERSION.tar.gz --out user-data
#   tofu -chdir=deploy/opentofu/aws apply

terraform {
  required_version = ">= 1.6"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.0"
    }
  }
}

provider "aws" {
  region = var.region
}

resource "aws_security_group" "machine" {
  name_prefix = "finetuned-"
  description = "SSH in, everything out"
  vpc_id      = var.vpc_id
}

resource "aws_vpc_security_group_ingress_rule" "ssh" {
  security_group_id = aws_security_group.machine.id
  description       = "SSH"
  cidr_ipv4         = var.ssh_from
  ip_protocol       = "tcp"
  from_port         = 22
  to_port           = 22
}

resource "aws_vpc_security_group_egress_rule" "all" {
  security_group_id = aws_security_group.machine.id
  description       = "Packages, models, destinations"
  cidr_ipv4         = "0.0.0.0/0"
  ip_protocol       = "-1"
}

resource "aws_instance" "machine" {
  ami                    = var.image_id
  instance_type          = var.instance_type
  subnet_id              = var.subnet_id
  key_name               = var.key_name
  iam_instance_profile   = var.instance_profile
  vpc_security_group_ids = [aws_security_group.machine.id]

  # The file is gzipped MIME: encoded once, here. `user_data` would spoil it.
  user_data_base64 = filebase64(var.user_data_file)

  # What a poweroff from inside does, and so what deploy/hooks/aws does: both end the compute charge.
  instance_initiated_shutdown_behavior = var.on_poweroff

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  maintenance_options {
    auto_recovery = "default"
  }

  root_block_device {
    volume_type = "gp3"
    volume_size = var.disk_gb
    throughput  = 500
    iops        = 4000
    encrypted   = true
  }

  tags = {
    Name = var.name
  }

  # A newer image or user-data is for the next machine, never a reason to replace one that trains:
  # tofu apply -replace=aws_instance.machine
  lifecycle {
    ignore_changes = [ami, user_data_base64]
  }
}

output "address" {
  description = "Where to log in."
  value       = coalesce(aws_instance.machine.public_ip, aws_instance.machine.private_ip)
}
